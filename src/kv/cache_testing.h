// kv/cache_testing.h - the fixture of the cache's tests: a small cache and a toy model that writes
// and checks its rows.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "kv/cache.h"
#include "kv/test_model.h"

namespace quire {

inline std::vector<TokenId> tokens_from(TokenId first, std::size_t count) {
  std::vector<TokenId> t(count);
  std::iota(t.begin(), t.end(), first);
  return t;
}

inline RootIdentity identity() {
  RootIdentity id;
  id.tenant = "t";
  return id;
}

// A cache, a toy model that writes and checks every row, and the few moves the tests make.
class CacheTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlock = 4;

  void start(std::vector<LayerGroup> groups, std::uint64_t budget = 1 << 20, CacheOptions o = {}) {
    o.budget_bytes = budget;
    o.tokens_per_block = kBlock;
    o.node_capacity = 4096;
    cache = std::make_unique<KvCache>(o, toy_memory(4 * budget), clock);
    geometry = toy_geometry(std::move(groups), kBlock);
    root = cache->root(identity(), geometry).value();
  }
  void SetUp() override { start({toy_group(GroupKind::full, 1, 2)}); }
  void TearDown() override {
    if (cache) cache->check();
  }

  Sequence open(SequenceOptions o = {}) {
    o.root = root;
    if (o.token_capacity == 0) o.token_capacity = 512;
    return std::move(cache->open(o).value());
  }

  void expect_rows(const Sequence& s) {
    History h;
    h.assign(s.tokens());
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const LayerGroup& group = geometry.groups[g];
      if (group.kind == GroupKind::state) {
        if (s.length() > 0) {
          EXPECT_TRUE(toy_state_matches(cache->arena(), s.table(g)[0], h, s.length()));
        }
        continue;
      }
      const std::uint32_t from =
          group.window && s.length() + 1 > group.window ? s.length() + 1 - group.window : 0;
      EXPECT_TRUE(toy_matches(cache->arena(), geometry, g, s.table(g), h, from, s.length()))
          << "group " << g;
    }
  }

  void write(const Reservation& r, std::size_t item, std::span<const TokenId> tokens) {
    History h;
    h.assign(tokens);
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const KvSequenceView v = r.view(item, g, 0);
      if (geometry.groups[g].kind == GroupKind::state)
        toy_write_state(cache->arena(), v.blocks[0], h, v.past + v.row_count);
      else
        toy_write(cache->arena(), geometry, g, v, h, v.past, v.past + v.row_count);
    }
  }

  // Computes the next `count` tokens of a sequence: known ones, then `more`.
  void step(Sequence& s, std::uint32_t count, std::span<const TokenId> more = {}) {
    std::vector<TokenId> all(s.tokens().begin(), s.tokens().end());
    all.insert(all.end(), more.begin(), more.end());
    const StepNeed need{&s, count};
    Result<Reservation> r = cache->reserve({&need, 1});
    ASSERT_TRUE(r.ok()) << r.error().message;
    write(r.value(), 0, std::span(all).first(s.length() + count));
    r.value().commit(0, std::span(all).subspan(s.length(), count));
  }
  void prefill(Sequence& s) {
    if (s.length() < s.tokens().size())
      step(s, static_cast<std::uint32_t>(s.tokens().size()) - s.length());
  }
  Sequence run(std::span<const TokenId> prompt, SequenceOptions o = {}) {
    Sequence s = open(o);
    cache->attach(s, prompt);
    prefill(s);
    return s;
  }

  ManualClock clock;
  Geometry geometry;
  RootId root{};
  std::unique_ptr<KvCache> cache;
};

}  // namespace quire
