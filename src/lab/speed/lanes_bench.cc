// The cost of a window that moves over endless text: each time a block is full, the oldest one
// leaves. (`quire bench retain` measures decoding from the part of a prompt that a policy keeps.)
//
//   QUIRE_TEST_MODEL=model.gguf build/release/src/lab_lanes_bench
//
// `compact_ms` is the time of one compaction, `share` its part in the time of 32 tokens decoded one
// by one.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "lab/speed/decode_batch.h"
#include "lab/speed/timing.h"

namespace quire::lab {
namespace {

void stream(benchmark::State& state, const char* format) {
  const char* path = std::getenv("QUIRE_TEST_MODEL");
  if (!path) return state.SkipWithError("QUIRE_TEST_MODEL is not set");
  auto opened =
      Runtime::open(path, {.kv_format = format, .kv_cache_bytes = std::uint64_t{1} << 30});
  if (!opened.ok()) return state.SkipWithError(opened.error().message.c_str());
  Runtime& r = *opened.value();
  const Geometry& geometry = r.geometry();
  const std::uint32_t group = geometry.places[0].group, per_block = geometry.tokens_per_block;
  const auto window = static_cast<std::uint32_t>(state.range(0));
  constexpr std::uint32_t kTokens = 8000;
  const std::vector<TokenId> tokens = filler(r, kTokens, 7);
  Sequence s = std::move(r.cache()
                             .open({.root = r.tenant_root("").value(),
                                    .token_capacity = kTokens,
                                    .reuse = false,
                                    .publish = false})
                             .value());
  r.cache().attach(s, {});
  Stepper stepper(r);
  double compacting = 0, decoding = 0;
  std::uint32_t at = 0;
  const auto read = [&](std::uint32_t count) {
    const StepItem item{&s, std::span(tokens).subspan(at, count), Logits::none};
    if (!stepper.run({&item, 1}).ok()) state.SkipWithError("no room");
    at += count;
  };
  const auto compact = [&] {
    std::vector<std::uint32_t> keep;
    for (std::uint32_t t = 0; t < at; ++t)
      if (t < 4 || t + window >= at) keep.push_back(t);
    const std::vector<std::span<const std::uint32_t>> all(geometry.groups[group].lanes(), keep);
    if (!r.cache().compact(s, group, at, all).ok()) state.SkipWithError("compacting failed");
  };
  while (at < window + per_block) read(per_block);
  compact();
  for (auto _ : state) {
    const Stopwatch decodes;
    for (std::uint32_t i = 0; i < per_block; ++i) read(1);
    decoding += decodes.seconds();
    const Stopwatch compacts;
    compact();
    compacting += compacts.seconds();
  }
  state.counters["compact_ms"] = compacting / static_cast<double>(state.iterations()) * 1e3;
  state.counters["share"] = compacting / (compacting + decoding);
}

BENCHMARK_CAPTURE(stream, f16, "f16")->Arg(1024)->Iterations(20)->UseRealTime();
BENCHMARK_CAPTURE(stream, int4, "hadamard-int4")->Arg(1024)->Iterations(20)->UseRealTime();

}  // namespace
}  // namespace quire::lab
