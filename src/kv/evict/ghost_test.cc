#include "kv/evict/ghost.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/random.h"

namespace quire {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(Ghost, RemembersWhenAndWhy) {
  GhostTable ghosts(10);
  ghosts.add(7, 100, Reason::evicted_expired, 55);
  const std::optional<Ghost> g = ghosts.find(7);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->when, 55);
  EXPECT_EQ(g->reason, Reason::evicted_expired);
  EXPECT_FALSE(ghosts.find(8));
  EXPECT_FALSE(ghosts.find(0));
  ghosts.forget(7);
  EXPECT_FALSE(ghosts.find(7));
}

TEST(Ghost, SaysWhatALargerCacheWouldHaveHit) {
  GhostTable ghosts(1000);
  for (std::uint64_t k = 1; k <= 300; ++k) ghosts.add(k, kMiB, Reason::evicted_capacity, 0);
  ghosts.miss(201, 32, 100 * kMiB);  // 100 MiB away
  EXPECT_EQ(ghosts.stats().would_hit_2x, 32u);
  ghosts.miss(1, 32, 100 * kMiB);  // 299 MiB, as 201 is back
  EXPECT_EQ(ghosts.stats().would_hit_2x, 32u);
  EXPECT_EQ(ghosts.stats().would_hit_4x, 64u);
  ghosts.miss(2, 32, 50 * kMiB);  // 298 MiB
  EXPECT_EQ(ghosts.stats().would_hit_4x, 64u);
  EXPECT_EQ(ghosts.stats().would_hit_8x, 96u);
  ghosts.miss(999, 32, kMiB);
  EXPECT_EQ(ghosts.stats().lookups, 128u);
  EXPECT_EQ(ghosts.stats().found, 96u);
  EXPECT_EQ(ghosts.stats().by_distance[7], 32u);  // 64 to 128 MiB
  EXPECT_EQ(ghosts.stats().by_distance[9], 64u);
}

TEST(Ghost, ALargerCacheWouldNotHaveKeptWhatExpired) {
  GhostTable ghosts(10);
  ghosts.add(1, kMiB, Reason::evicted_expired, 0);
  ghosts.miss(1, 1, 1000 * kMiB);
  EXPECT_EQ(ghosts.stats().found, 1u);
  EXPECT_EQ(ghosts.stats().would_hit_8x, 0u);
  EXPECT_EQ(ghosts.stats().evicted_bytes, 0u);
}

// What the table says of 2x, 4x and 8x, against LRU caches of those sizes run beside it.
TEST(Ghost, PredictsTheHitsOfLargerLruCaches) {
  constexpr std::size_t kRoom = 50;
  struct Cache {
    std::size_t room;
    std::deque<std::uint64_t> order;
    std::uint64_t hits = 0;
    std::optional<std::uint64_t> use(std::uint64_t key) {  // returns what was evicted
      const auto at = std::find(order.begin(), order.end(), key);
      hits += at != order.end();
      if (at != order.end()) order.erase(at);
      order.push_back(key);
      if (order.size() <= room) return std::nullopt;
      const std::uint64_t out = order.front();
      order.pop_front();
      return out;
    }
  } one{kRoom, {}}, two{2 * kRoom, {}}, four{4 * kRoom, {}};
  GhostTable ghosts(10000);
  Random random(2);
  for (int n = 0; n < 30000; ++n) {
    const std::uint64_t key = 1 + (random.chance(0.5) ? random.below(60) : random.below(300));
    const std::uint64_t before = one.hits;
    const std::optional<std::uint64_t> out = one.use(key);
    two.use(key);
    four.use(key);
    if (one.hits == before) ghosts.miss(key, 1, kRoom);
    if (out) ghosts.add(*out, 1, Reason::evicted_capacity, n);
  }
  EXPECT_EQ(one.hits + ghosts.stats().would_hit_2x, two.hits);
  EXPECT_EQ(one.hits + ghosts.stats().would_hit_4x, four.hits);
}

TEST(Ghost, KeepsTheLastOnesAndAgreesWithAPlainList) {
  GhostTable ghosts(50);
  std::deque<std::pair<std::uint64_t, std::uint64_t>>
      model;  // key, bytes; oldest first; forgotten have bytes 0
  Random random(9);
  for (std::uint64_t n = 1; n < 50000; ++n) {
    const std::uint64_t key = random.below(120);
    const auto same = [&](const auto& m) { return m.first == key && m.second != 0; };
    if (random.chance(0.7)) {
      ghosts.add(key, n, Reason::evicted_capacity, static_cast<Nanoseconds>(n));
      for (auto& m : model)
        if (same(m)) m.second = 0;
      model.emplace_back(key, n);
      if (model.size() > 50) model.pop_front();
    } else {
      ghosts.forget(key);
      for (auto& m : model)
        if (same(m)) m.second = 0;
    }
    const std::uint64_t probe = random.below(120);
    const auto at = std::find_if(model.begin(), model.end(),
                                 [&](const auto& m) { return m.first == probe && m.second != 0; });
    const std::optional<Ghost> g = ghosts.find(probe);
    ASSERT_EQ(g.has_value(), at != model.end()) << n;
    if (g) {
      std::uint64_t newer = 0;
      for (auto m = at; m != model.end(); ++m) newer += m->second;
      ASSERT_EQ(g->bytes, at->second);
      ASSERT_EQ(g->distance, newer);
    }
    ASSERT_EQ(ghosts.size(), std::count_if(model.begin(), model.end(),
                                           [](const auto& m) { return m.second != 0; }));
  }
}

}  // namespace
}  // namespace quire
