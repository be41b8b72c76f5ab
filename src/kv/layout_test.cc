#include "kv/layout.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

Geometry base() {
  Geometry g;
  g.groups.push_back({.layers = {0, 1},
                      .kv_heads = 3,
                      .key_dim = 64,
                      .value_dim = 64,
                      .format = find_format("f16").value()});
  g.groups.push_back({.kind = GroupKind::window,
                      .layers = {2},
                      .kv_heads = 3,
                      .key_dim = 64,
                      .value_dim = 64,
                      .window = 512,
                      .format = find_format("f16").value()});
  g.places = {{0, 0}, {0, 1}, {1, 0}};
  return g;
}

TEST(Layout, EveryPartOfAGeometryCounts) {
  std::set<std::string> seen{encode_layout(base())};
  const auto with = [&](auto change) {
    Geometry g = base();
    change(g);
    seen.insert(encode_layout(g));
  };
  with([](Geometry& g) { g.tokens_per_block = 16; });
  with([](Geometry& g) { g.groups.pop_back(); });
  with([](Geometry& g) { g.groups[0].kind = GroupKind::latent; });
  with([](Geometry& g) { g.groups[0].layers = {0, 2}; });
  with([](Geometry& g) { g.groups[0].kv_heads = 4; });
  with([](Geometry& g) { g.groups[0].key_dim = 32; });
  with([](Geometry& g) { g.groups[0].value_dim = 32; });
  with([](Geometry& g) { g.groups[1].window = 1024; });
  with([](Geometry& g) { g.groups[1].state_bytes = 8; });
  with([](Geometry& g) { g.groups[1].format = find_format("bf16").value(); });
  with([](Geometry& g) { g.places[2] = {0, 1}; });
  with([](Geometry& g) { g.order = PageOrder::cuda; });
  EXPECT_EQ(seen.size(), 13u);
}

TEST(Layout, EqualGeometriesHaveEqualDigests) {
  EXPECT_EQ(layout_digest(base()), layout_digest(base()));
}

// Pinned: changing the encoding makes every stored block unreachable, so it takes a new version
// number.
TEST(Layout, EncodingOfVersionTwoIsPinned) {
  EXPECT_EQ(encode_layout(base()).size(), 293u);
  EXPECT_EQ(BlockKey{layout_digest(base())}.hex(),
            "9371fe6c6f0c3a09f04ef82e7373c8d773c056faaebb4c21cfc22662cccc7b0b");
}

}  // namespace
}  // namespace quire
