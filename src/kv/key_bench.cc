// Key chains: bytes of token ids per second. Goal: 300 MB/s at 32 tokens per block.
#include <benchmark/benchmark.h>

#include <vector>

#include "kv/key.h"

namespace quire {
namespace {

void key_chain(benchmark::State& state) {
  const KeySecret secret = KeySecret::random();
  std::vector<std::uint32_t> tokens(100000);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::uint32_t>(i * 2654435761u % 49152);
  for (auto _ : state) {
    KeyChain chain(secret, {}, static_cast<std::uint32_t>(state.range(0)));
    chain.extend(tokens);
    benchmark::DoNotOptimize(chain.keys().back());
  }
  state.SetBytesProcessed(
      static_cast<std::int64_t>(state.iterations() * tokens.size() * sizeof tokens[0]));
}
BENCHMARK(key_chain)->Arg(16)->Arg(32)->Arg(64);

}  // namespace
}  // namespace quire
