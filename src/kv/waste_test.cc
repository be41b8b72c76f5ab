// How much of the memory holds no live token, with blocks of 32 and mixed lengths of 50 to 4,000
// tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "base/random.h"
#include "kernels/geometry.h"
#include "kv/pool.h"

namespace quire {
namespace {

struct Model {
  const char* name;
  std::uint32_t layers, kv_heads, head_dim;
};

LayerGroup group(const Model& m) {
  LayerGroup g;
  for (std::uint32_t l = 0; l < m.layers; ++l) g.layers.push_back(l);
  g.kv_heads = m.kv_heads;
  g.key_dim = g.value_dim = m.head_dim;
  g.format = find_format("f16").value();
  return g;
}

struct Sequence {
  std::uint32_t tokens = 0, end = 0;
  std::vector<BlockRef> blocks;
};

class Waste : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(
    Models, Waste,
    testing::Values(Model{"SmolLM2-135M", 30, 3, 64}, Model{"Llama-3-8B", 32, 8, 128},
                    Model{"Llama-3-70B", 80, 8, 128}, Model{"Gemma-3-270M", 18, 1, 256}),
    [](const auto& i) {
      std::string name = i.param.name;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

// A busy server: sequences come as long as there is room for their prompt (a tenth to nine tenths
// of their final length), grow by one token per step and end at their length; when a block cannot
// be had the youngest gives way. Naive means room for the longest from the start. Lengths are
// uniform, or log-uniform (many short ones).
TEST_P(Waste, IsUnderFourPercentWhereNaivePreallocationWastesMoreThanHalf) {
  Geometry geometry;
  const LayerGroup g = group(GetParam());
  const std::size_t block_bytes = geometry.block_bytes(g);
  const double token_bytes = geometry.bytes_per_token(g);
  constexpr std::uint32_t kLongest = 4096, kSteps = 4000;
  for (const bool many_short : {false, true}) {
    // Nothing is touched, so this costs addresses only.
    const std::uint64_t budget = std::uint64_t{block_bytes} * (kLongest / 32) * 64;
    Arena arena(std::move(reserve_host_memory({.bytes = 2 * budget, .huge_pages = false}).value()),
                {.budget_bytes = budget, .poison = false});
    BlockPool pool(arena, {.blocks_max = 1 << 20});
    const SizeClass c = arena.size_class(block_bytes);
    Random random(7);
    std::vector<Sequence> sequences;
    Sequence waiting;
    const auto next = [&] {
      const double length =
          many_short ? 50 * std::pow(80.0, random.unit()) : 50 + random.unit() * 3950;
      waiting.end = static_cast<std::uint32_t>(length);
      waiting.tokens =
          std::max(1u, static_cast<std::uint32_t>(length * (0.1 + 0.8 * random.unit())));
    };
    const auto grow = [&](Sequence& s) {
      while (s.blocks.size() * 32 < s.tokens) {
        s.blocks.push_back(pool.take(c));
        if (s.blocks.back().empty()) return s.blocks.pop_back(), false;
      }
      return true;
    };
    next();
    double live = 0, room = 0, naive = 0;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::erase_if(sequences, [](const Sequence& s) { return s.tokens == s.end; });
      while (arena.available(c) * 32 > waiting.tokens + 32) {
        ASSERT_TRUE(grow(waiting));
        sequences.push_back(std::move(waiting));
        waiting = {};
        next();
      }
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        ++sequences[i].tokens;
        while (i < sequences.size() && !grow(sequences[i])) sequences.pop_back();
      }
      if (step < kSteps / 4) continue;  // all kinds of ages by now
      for (const Sequence& s : sequences) live += s.tokens * token_bytes;
      naive += static_cast<double>(sequences.size()) * kLongest * token_bytes;
      room += static_cast<double>(budget);
    }
    const double waste = 1 - live / room, naive_waste = 1 - live / naive;
    std::printf("%s, %s lengths: %.1f %% of the memory holds no live token; naive: %.1f %%\n",
                GetParam().name, many_short ? "log-uniform" : "uniform", 100 * waste,
                100 * naive_waste);
    EXPECT_LT(waste, 0.04);
    EXPECT_GT(naive_waste, 0.5);
  }
}

}  // namespace
}  // namespace quire
