// kv/tier/store_tier.h - a shared store behind the Tier interface: records are sealed, two threads
// ask, and a breaker keeps a store that does not answer from costing anything.
//
// One thread finds and reads, the other writes and erases, so that a long write keeps no prompt
// waiting. Each has a ValueStore of its own, opened when it is first needed and again after an
// error. A record is one value. Its name is a keyed hash that covers the tenant, and token list and
// segments are encrypted for the tenant, so a store tells others nothing. What does not open, or is
// another block, is counted, erased and a miss.
//
// While the breaker is open find() has its answer at once, and a call that tries whether the store works again
// is made behind it: no prompt waits for that. A call that does not come back at all (a mounted folder
// whose server is gone) opens the breaker after `patience`; reads that wait for it fail, and their
// memory is free again.
//
//   StoreTier tier({.open = [] { return open_folder_store("/mnt/kv", {}); }, .secret = secret,
//                   .mailbox = &mailbox});
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv/tier/breaker.h"
#include "kv/tier/mailbox.h"
#include "kv/tier/tier.h"
#include "kv/tier/tiers.h"
#include "kv/tier/value_store.h"

namespace quire {

struct StoreTierOptions {
  OpenValueStore open;
  DeploymentSecret secret;
  Mailbox* mailbox = nullptr;                        // outlives the tier
  std::function<void(const std::string&)> log = {};  // from the tier's threads
  BreakerOptions breaker = {};
  Nanoseconds patience =
      0;  // for a call that has done nothing; 0: the store's calls end by themselves
  std::uint64_t capacity_bytes = 0;                            // that the store bounds itself to
  std::uint64_t write_queue_bytes = std::uint64_t{256} << 20;  // beyond: `full`
};

class StoreTier final : public Tier {
 public:
  explicit StoreTier(StoreTierOptions options);
  // Answers what is queued with `cancelled`. A thread whose call does not come back is left to itself.
  ~StoreTier() override;

  const TierTraits& traits() const override { return traits_; }
  void find(std::span<const RecordName> names, FindDone done) override;
  void read(std::span<const SegmentRead> reads, ReadDone done) override;
  void write(std::span<const RecordWrite> writes, WriteDone done) override;
  void erase(std::span<const RecordName> names) override;
  void clear() override {}  // others use it, too
  void flush(std::function<void()> done) override;
  TierCost cost() const override;
  TierStats stats() const override;  // engine thread; also where a call that hangs is noticed

 private:
  struct Inside;  // what the threads use
  struct Fetch;   // a read under way

  void look_for_hangs() const;

  const TierTraits traits_;
  std::unique_ptr<Inside> inside_;
  mutable std::vector<std::shared_ptr<Fetch>> fetches_;
};

// For entries of the table of tiers (kv/tier/tiers.h). A shared place needs a secret.
Result<std::unique_ptr<Tier>> open_store_tier(const TierSettings& settings, OpenValueStore open,
                                              Nanoseconds patience = 0,
                                              std::uint64_t capacity_bytes = 0);

}  // namespace quire
