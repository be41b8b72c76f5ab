// kv/tier/tier_testing.h - what every tier must do, whatever it is made of: TestBlocks through the
// Tier interface, and the calls that wait for an answer.
//
//   TierUser user(tier, mailbox, [&] { advance_time(); });
//   EXPECT_EQ(user.write({1, 2, 3}), outcomes);
#pragma once

#include <functional>
#include <vector>

#include "kv/tier/disk_testing.h"
#include "kv/tier/mailbox.h"
#include "kv/tier/tier.h"

namespace quire {

class TierUser {
 public:
  // `pass_time` is called until an answer is there.
  TierUser(Tier& tier, Mailbox& mailbox, std::function<void()> pass_time,
           const TestBlockShape& shape = {})
      : tier_(tier), mailbox_(mailbox), pass_time_(std::move(pass_time)), shape_(shape) {}

  TierOutcome write(std::uint64_t number, const std::string& tenant = {}) {
    const TestBlock block(number, shape_);
    RecordWrite write = write_of(block);
    write.tenant = tenant;
    TierOutcome outcome{};
    bool ended = false;
    tier_.write({&write, 1}, [&](std::span<const TierOutcome> ends) {
      CHECK(ends.size() == 1);
      outcome = ends[0];
      ended = true;
    });
    wait(ended);
    return outcome;
  }

  // The worst outcome of the segments; aborts if a good one has other bytes.
  TierOutcome read(std::uint64_t number, const std::string& tenant = {}) {
    const TestBlock block(number, shape_);
    std::vector<std::vector<std::byte>> to(block.segments().size());
    std::vector<SegmentRead> reads;
    for (std::uint32_t i = 0; i < to.size(); ++i) {
      to[i].resize(block.segments()[i].size());
      reads.push_back({block.identity(), i, to[i], tenant});
    }
    TierOutcome worst = TierOutcome::ok;
    std::size_t count = 0;
    bool ended = false;
    tier_.read(reads, [&](std::span<const ReadEnd> ends, bool last) {
      CHECK(!ended);
      for (const ReadEnd& end : ends) {
        ++count;
        if (end.outcome != TierOutcome::ok)
          worst = end.outcome;
        else
          CHECK(to[end.read] == block.segments()[end.read]);
      }
      ended = last;
    });
    wait(ended);
    CHECK(count == reads.size());
    return worst;
  }

  bool find(std::uint64_t number) {
    const RecordName name = TestBlock(number, shape_).name();
    bool there = false, ended = false;
    tier_.find({&name, 1}, [&](std::span<const std::uint8_t> found) {
      CHECK(found.size() == 1);
      there = found[0] != 0;
      ended = true;
    });
    wait(ended);
    return there;
  }

  void erase(std::uint64_t number) {
    const RecordName name = TestBlock(number, shape_).name();
    tier_.erase({&name, 1});
  }

  void flush() {
    bool ended = false;
    tier_.flush([&] { ended = true; });
    wait(ended);
  }

 private:
  void wait(const bool& ended) {
    while (mailbox_.drain(), !ended) pass_time_();
  }

  Tier& tier_;
  Mailbox& mailbox_;
  std::function<void()> pass_time_;
  TestBlockShape shape_;
};

}  // namespace quire
