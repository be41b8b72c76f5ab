#include "kv/evict/ladder.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace quire {
namespace {

TEST(Ladder, OrderIsExactWhileThereAreFewerKeysThanRungs) {
  LinkedIds<PlainLink> lists(100, 64);
  Ladder ladder(lists, 0, 64);
  Random random(3);
  std::multimap<std::uint64_t, std::uint32_t> model;
  for (std::uint32_t id = 0; id < 50; ++id) {
    ladder.insert(id, id * 10);
    model.emplace(id * 10, id);
  }
  for (std::uint32_t id = 50; id < 100; ++id) {  // old keys that come late
    const std::uint64_t key = random.below(49) * 10;
    ladder.insert(id, key);
    model.emplace(key, id);
  }
  for (const auto& [key, id] : model) {
    EXPECT_EQ(ladder.front(), id);
    ladder.erase(id);
  }
  EXPECT_TRUE(ladder.empty());
}

TEST(Ladder, BeyondThatItIsOffByASmallPartOfItsLength) {
  constexpr std::uint32_t kIds = 100000, kRungs = 256;
  LinkedIds<PlainLink> lists(kIds, kRungs);
  Ladder ladder(lists, 0, kRungs);
  std::vector<std::uint64_t> keys(kIds);
  for (std::uint32_t id = 0; id < kIds; ++id) ladder.insert(id, keys[id] = id);
  std::uint64_t worst = 0;
  for (std::uint32_t n = 0; n < kIds; ++n) {
    const std::uint32_t id = ladder.front();
    worst = std::max<std::uint64_t>(worst, keys[id] > n ? keys[id] - n : n - keys[id]);
    ladder.erase(id);
    if (n % 3 == 0 && keys[id] < n + kIds / 2) {  // comes back with a key from the middle
      keys[id] = n + kIds / 4;
      ladder.insert(id, keys[id]);
    }
    if (n > kIds / 2) break;
  }
  EXPECT_LE(worst, kIds / 3);
}

TEST(Ladder, SurvivesEmptyingAndRefillingOverAndOver) {
  LinkedIds<PlainLink> lists(8, 4);
  Ladder ladder(lists, 0, 4);
  Random random(1);
  std::map<std::uint32_t, std::uint64_t> in;
  std::uint64_t time = 0;
  for (int n = 0; n < 100000; ++n) {
    const auto id = static_cast<std::uint32_t>(random.below(8));
    if (in.count(id)) {
      ladder.erase(id);
      in.erase(id);
    } else {
      const std::uint64_t key =
          random.chance(0.7) ? ++time : time - std::min(time, random.below(20));
      ladder.insert(id, key);
      in[id] = key;
    }
    ASSERT_EQ(ladder.size(), in.size());
    if (!in.empty()) {
      ASSERT_TRUE(in.count(ladder.front()));
    }
  }
}

}  // namespace
}  // namespace quire
