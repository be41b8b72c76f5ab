#include "kv/tier/block_segments.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire {
namespace {

Geometry geometry_of(std::uint32_t layers, std::uint32_t together) {
  LayerGroup attention{.kv_heads = 3, .key_dim = 64, .value_dim = 64, .together = together};
  attention.layers.resize(layers);
  std::iota(attention.layers.begin(), attention.layers.end(), 0u);
  attention.format = find_format("f16").value();
  LayerGroup state{.kind = GroupKind::state, .layers = {30, 31}, .state_bytes = 1000};
  return {.groups = {attention, state}};
}

TEST(BlockSegments, CoverTheBlockWithoutGaps) {
  for (const std::uint32_t together : {1u, 2u})
    for (const std::uint32_t at_once : {1u, 4u, 7u, 100u}) {
      const Geometry geometry = geometry_of(30, together);
      for (std::uint32_t group : {0u, 1u}) {
        const LayerGroup& g = geometry.groups[group];
        const auto segments = block_segments(geometry, group, at_once);
        std::uint64_t bytes = 0, layers = 0;
        for (const RecordSegment& s : segments) {
          EXPECT_EQ(s.group, group);
          EXPECT_EQ(s.first_layer, layers);
          EXPECT_EQ(s.layers % (group == 0 ? together : 1), 0u);
          layers += s.layers;
          bytes += s.bytes;
        }
        EXPECT_EQ(layers, g.layers.size());
        EXPECT_LE(bytes, geometry.block_bytes(g));
        EXPECT_LT(geometry.block_bytes(g) - bytes, 256u);
        std::vector<std::byte> block(geometry.block_bytes(g));
        const auto parts = cut_block(segments, std::span<std::byte>(block));
        ASSERT_EQ(parts.size(), segments.size());
        EXPECT_EQ(parts.front().data(), block.data());
        EXPECT_EQ(parts.back().data() + parts.back().size(), block.data() + bytes);
      }
    }
}

TEST(BlockSegments, OneLayerOfAnExactFormat) {
  const auto segments = block_segments(geometry_of(30, 1), 0);
  ASSERT_EQ(segments.size(), 30u);
  EXPECT_EQ(segments[0].bytes, 3u * 32 * (64 + 64) * 2);
}

}  // namespace
}  // namespace quire
