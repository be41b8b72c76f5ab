// kv/tier/memory_tier.h - a tier in memory whose time is a Clock's: for the simulator and for tests
// of whoever uses tiers.
//
// It takes as long as its options say, by the clock it is given, one call after another. poll()
// posts what has ended by now; next_due() says when the next call ends. Records are kept encoded,
// so that the same checks apply as on a disk. The same seed gives the same trouble. One thread.
//
//   ManualClock clock;
//   MemoryTier tier({.first_byte_ns = 100'000, .bytes_per_s = 1e9}, clock, mailbox);
//   tier.read(reads, done);
//   clock.advance(tier.next_due() - clock.now());
//   tier.poll();
//   mailbox.drain();                       // runs `done`
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "kv/tier/mailbox.h"
#include "kv/tier/tier.h"

namespace quire {

struct MemoryTierOptions {
  TierTraits traits = {.name = "disk", .durable = true};  // capacity_bytes 0: no bound
  Nanoseconds first_byte_ns = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  std::optional<TierCost> claims = {};  // what cost() says, whatever is true
  // Of a record: it cannot be read, is damaged on the way, or is lost when it is written.
  double fail_chance = 0, corrupt_chance = 0, lose_chance = 0;
  std::optional<DeploymentSecret> secret = {};  // given: records are sealed, as in a shared place
  std::uint64_t seed = 1;
};

class MemoryTier final : public Tier {
 public:
  MemoryTier(const MemoryTierOptions& options, const Clock& clock, Mailbox& mailbox)
      : options_(options), clock_(clock), mailbox_(mailbox), random_(options.seed) {}

  void poll();
  Nanoseconds next_due() const;               // the largest Nanoseconds: nothing is under way
  void set_down(bool down) { down_ = down; }  // everything fails while it is

  const TierTraits& traits() const override { return options_.traits; }
  void find(std::span<const RecordName> names, FindDone done) override;
  void read(std::span<const SegmentRead> reads, ReadDone done) override;
  void write(std::span<const RecordWrite> writes, WriteDone done) override;
  void erase(std::span<const RecordName> names) override;
  void clear() override;  // at once
  void flush(std::function<void()> done) override;
  TierCost cost() const override;
  TierStats stats() const override;

 private:
  struct Event {
    Nanoseconds due;
    std::uint64_t bytes;  // that were queued for it
    std::function<void()> run;
  };

  void later(std::uint64_t bytes, bool queued, std::function<void()> run);
  TierOutcome read_now(const SegmentRead& read);
  TierOutcome write_now(const RecordWrite& write);
  void drop(const RecordName& name);

  MemoryTierOptions options_;
  const Clock& clock_;
  Mailbox& mailbox_;
  Random random_;
  std::deque<Event> events_;  // in order of their end
  Nanoseconds busy_until_ = 0;
  std::uint64_t queued_bytes_ = 0;
  bool down_ = false;
  std::map<RecordName, std::vector<std::byte>> records_;  // encoded
  std::deque<RecordName> order_;                          // as written: the oldest leave first
  TierStats counts_;
};

}  // namespace quire
