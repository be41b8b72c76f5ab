// kv/tier/store_tier.h - a shared store behind the Tier interface: records are sealed, two threads
// ask, and a breaker keeps a store that does not answer from costing anything.
//
// One thread finds and reads, the other writes and erases, so that a long write keeps no prompt
// waiting. Each has a ValueStore of its own, opened when it is first needed and again after an
// error. A record is one value. Its name is a keyed hash that covers the tenant, and token list and
// segments are encrypted for the tenant, so a store tells others nothing. What does not open, or is
// another block, is counted, erased and a miss.
//
//   StoreTier tier({.open = [] { return open_folder_store("/mnt/kv", {}); }, .secret = secret,
//                   .mailbox = &mailbox});
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv/tier/breaker.h"
#include "kv/tier/courier.h"
#include "kv/tier/mailbox.h"
#include "kv/tier/tier.h"
#include "kv/tier/tier_meter.h"
#include "kv/tier/tiers.h"
#include "kv/tier/value_store.h"

namespace quire {

struct StoreTierOptions {
  OpenValueStore open;
  DeploymentSecret secret;
  Mailbox* mailbox = nullptr;                        // outlives the tier
  std::function<void(const std::string&)> log = {};  // from the tier's threads
  BreakerOptions breaker = {};
  std::uint64_t write_queue_bytes = std::uint64_t{256} << 20;  // beyond: `full`
};

class StoreTier final : public Tier {
 public:
  explicit StoreTier(StoreTierOptions options);
  ~StoreTier() override;  // answers what is queued with `cancelled`

  const TierTraits& traits() const override { return traits_; }
  void find(std::span<const RecordName> names, FindDone done) override;
  void read(std::span<const SegmentRead> reads, ReadDone done) override;
  void write(std::span<const RecordWrite> writes, WriteDone done) override;
  void erase(std::span<const RecordName> names) override;
  void clear() override {}  // others use it, too
  void flush(std::function<void()> done) override;
  TierCost cost() const override { return meter_.cost(); }
  TierStats stats() const override;

 private:
  // What one thread asks through.
  struct Line {
    std::unique_ptr<ValueStore> store;
  };
  using Reads = std::vector<SegmentRead>;

  // True: `call` worked. Refuses without asking while the breaker is open.
  bool ask(Line& line, const std::function<Status(ValueStore&)>& call);
  std::vector<TierOutcome> get(const Reads& reads);
  void take(const Reads& reads, std::span<const std::size_t> of_record,
            std::span<const std::byte> value, std::vector<TierOutcome>& outcomes);
  std::vector<TierOutcome> put(std::span<const RecordWrite> writes);
  void post(std::function<void()> letter) { options_.mailbox->post(std::move(letter)); }
  void say(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  const StoreTierOptions options_;
  const TierTraits traits_;
  SteadyClock clock_;
  Breaker breaker_;
  TierMeter meter_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> queued_writes_{0};
  struct Counts {
    std::atomic<std::uint64_t> read_segments{0}, read_bytes{0}, written_records{0},
        written_bytes{0}, absent{0}, corrupt{0}, failed{0}, refused{0};
  } counts_;
  Line asking_, writing_;
  std::unique_ptr<Courier> reader_, writer_;  // use the others: end first
};

// For entries of the table of tiers (kv/tier/tiers.h). A shared place needs a secret.
Result<std::unique_ptr<Tier>> open_store_tier(const TierSettings& settings, OpenValueStore open);

}  // namespace quire
