// Matching a long prompt, inserting and erasing, with a million blocks cached. Nodes are made in
// shuffled order, so that a chain's nodes are not neighbours in memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/random.h"
#include "kv/index.h"

namespace {
using namespace quire;

constexpr std::uint32_t kBlock = 32, kChainBlocks = 3125;  // 100,000 tokens

struct Chain {
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
};

BlockKey random_key(Random& random) {
  BlockKey k;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t x = random.next();
    std::memcpy(&k.bytes[8 * i], &x, 8);
  }
  return k;
}

// Chains of 100,000 tokens, inserted one after the other or a block at a time in changing order.
struct Filled {
  PrefixIndex index;
  NodeId root;
  std::vector<Chain> chains;

  Filled(std::uint32_t blocks, bool scattered)
      : index({.node_capacity = blocks + 4096, .tokens_per_block = kBlock}) {
    Random random(1);
    root = index.add_root();
    chains.resize(blocks / kChainBlocks);
    for (Chain& c : chains) {
      c.tokens.resize(kChainBlocks * kBlock);
      for (TokenId& t : c.tokens) t = static_cast<TokenId>(random.below(50000));
      for (std::uint32_t i = 0; i < kChainBlocks; ++i) c.keys.push_back(random_key(random));
    }
    std::vector<NodeId> last(chains.size(), root);
    const auto insert = [&](std::size_t c, std::uint32_t b) {
      last[c] = index.insert(last[c], chains[c].keys[b], 0, &chains[c].tokens[b * kBlock]);
      index.expose(last[c]);
    };
    if (!scattered) {
      for (std::size_t c = 0; c < chains.size(); ++c)
        for (std::uint32_t b = 0; b < kChainBlocks; ++b) insert(c, b);
      return;
    }
    std::vector<std::size_t> order(chains.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 shuffle(2);
    for (std::uint32_t b = 0; b < kChainBlocks; ++b) {
      std::shuffle(order.begin(), order.end(), shuffle);
      for (const std::size_t c : order) insert(c, b);
    }
  }
};

Filled& filled(bool scattered = false) {
  static std::unique_ptr<Filled> kept;
  static bool kept_scattered = false;
  if (!kept || kept_scattered != scattered) {
    kept.reset();
    kept = std::make_unique<Filled>(1'000'000, scattered);
    kept_scattered = scattered;
  }
  return *kept;
}

// The prompt and its keys have just been computed and are in the processor's caches; of the index
// nothing is.
void match_100k_tokens(benchmark::State& state, bool scattered) {
  Filled& f = filled(scattered);
  std::vector<NodeId> path(kChainBlocks);
  Chain prompt;
  std::size_t next = 0, matched = 0;
  for (auto _ : state) {
    state.PauseTiming();
    prompt = f.chains[next++ * 7 % f.chains.size()];
    state.ResumeTiming();
    matched = f.index.match(f.root, {prompt.keys, prompt.tokens, {}}, path);
    benchmark::DoNotOptimize(path.data());
  }
  if (matched != kChainBlocks) state.SkipWithError("did not match");
  state.SetItemsProcessed(state.iterations() * kChainBlocks);
  state.counters["cached_blocks"] = f.index.size();
}
BENCHMARK_CAPTURE(match_100k_tokens, together, false)->Unit(benchmark::kMicrosecond);

void insert_and_erase(benchmark::State& state) {
  Filled& f = filled();
  Random random(9);
  const std::vector<TokenId> tokens(kBlock, 7);
  for (auto _ : state) {
    const BlockKey key = random_key(random);
    const NodeId n = f.index.insert(f.root, key, random.next(), tokens.data());
    f.index.erase(n);
  }
}
BENCHMARK(insert_and_erase);

void longest_child(benchmark::State& state) {
  Filled& f = filled();
  std::size_t next = 0;
  for (auto _ : state) {
    const Chain& c = f.chains[next++ * 7 % f.chains.size()];
    benchmark::DoNotOptimize(f.index.longest_child(f.root, 0, std::span(c.tokens).first(20)));
  }
}
BENCHMARK(longest_child);
BENCHMARK_CAPTURE(match_100k_tokens, scattered, true)->Unit(benchmark::kMicrosecond);

}  // namespace
