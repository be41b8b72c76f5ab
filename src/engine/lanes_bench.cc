// What compaction buys and costs on a real model: decoding after a prompt of 8,000 tokens from all of
// it in f16, from all of it in 4 bits, and from the fifth that SnapKV keeps of it in 4 bits.
//
//   QUIRE_TEST_MODEL=model.gguf build/release/src/engine_lanes_bench
//
// `tokens` per second of all sequences, `bytes` the cache holds for one; where something is compacted
// `scoring` and `compacting` are shares of the time that reading the prompt took.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <map>

#include "base/random.h"
#include "engine/runtime.h"
#include "engine/stepper.h"
#include "kv/retain/retain.h"

namespace quire {
namespace {

constexpr std::uint32_t kPrompt = 8000, kWindow = 64, kAnswer = 160;

std::vector<TokenId> filler(const Runtime& runtime, std::uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens(kPrompt);
  for (TokenId& t : tokens)
    t = static_cast<TokenId>(runtime.config().vocabulary / 8 +
                             random.below(runtime.config().vocabulary / 2));
  return tokens;
}

// A prompt that was read once, and what SnapKV would keep of it.
struct World {
  std::unique_ptr<Runtime> runtime;
  Sequence prompt;
  double prefill_seconds = 0, scoring_seconds = 0;
  KeepSets keep;
  std::uint32_t end = 0;  // tokens that lanes may hold
};

double seconds_of(const auto& f) {
  SteadyClock clock;
  const Nanoseconds start = clock.now();
  f();
  return static_cast<double>(clock.now() - start) * 1e-9;
}

Sequence open(Runtime& runtime) {
  Sequence s = std::move(runtime.cache()
                             .open({.root = runtime.tenant_root("").value(),
                                    .token_capacity = kPrompt + kAnswer,
                                    .reuse = false,
                                    .publish = false})
                             .value());
  runtime.cache().attach(s, {});
  return s;
}

void score(World& w, const Tap& tap) {
  Runtime& r = *w.runtime;
  const Geometry& geometry = r.geometry();
  const RetainMethod method = find_retain_method("snapkv").value();
  const std::uint32_t heads = r.config().query_heads, kv_heads = r.config().kv_heads;
  std::vector<KvSequenceView> views;
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g)
    views.push_back(r.cache().view(w.prompt, g));
  std::vector<float> mass(std::size_t{tap.layers()} * heads * kPrompt);
  std::vector<float*> out;
  for (std::size_t i = 0; i < std::size_t{tap.layers()} * heads; ++i)
    out.push_back(&mass[i * kPrompt]);
  r.executor().page_work()->add_mass(geometry, {r.cache().arena(), views}, tap,
                                     {.weight = 1.0f / kWindow, .rows = kWindow}, out);
  std::vector<float> scores(std::size_t{tap.layers()} * kv_heads * kPrompt);
  std::vector<std::uint32_t> begin;
  for (std::uint32_t lane = 0; lane <= tap.layers() * kv_heads; ++lane)
    begin.push_back(lane * kPrompt);
  for (std::uint32_t layer = 0; layer < tap.layers(); ++layer)
    method.score(method,
                 {.layer = layer,
                  .kv_heads = kv_heads,
                  .group = heads / kv_heads,
                  .slots = kPrompt,
                  .window_mass = std::span(mass).subspan(std::size_t{layer} * heads * kPrompt,
                                                         std::size_t{heads} * kPrompt)},
                 std::span(scores).subspan(std::size_t{layer} * kv_heads * kPrompt,
                                           std::size_t{kv_heads} * kPrompt));
  w.keep = choose(method, {kv_heads, scores, {}, begin}, budget_slots(kPrompt, 0.2));
  w.end = kPrompt / geometry.tokens_per_block * geometry.tokens_per_block;
}

World* world_of(const char* format) {
  static std::map<std::string, World> worlds;
  World& w = worlds[format];
  if (w.runtime) return &w;
  const char* path = std::getenv("QUIRE_TEST_MODEL");
  if (!path) return nullptr;
  auto opened =
      Runtime::open(path, {.kv_format = format, .kv_cache_bytes = std::uint64_t{4} << 30});
  if (!opened.ok()) return nullptr;
  w.runtime = std::move(opened.value());
  return &w;
}

void read_prompt(World& w) {
  if (w.prompt.is_open()) return;
  w.prompt = open(*w.runtime);
  Tap tap(w.runtime->config(), w.runtime->geometry(), w.runtime->geometry().places[0].group);
  tap.watch(kPrompt - kWindow, kWindow);
  const std::vector<TokenId> tokens = filler(*w.runtime, 1);
  w.prefill_seconds = seconds_of([&] {
    for (std::uint32_t at = 0; at < kPrompt; at += 512) {
      StepItem item{&w.prompt, std::span(tokens).subspan(at, std::min(512u, kPrompt - at)),
                    Logits::none};
      item.tap = &tap;
      benchmark::DoNotOptimize(Stepper(*w.runtime).run({&item, 1}).ok());
    }
  });
  w.scoring_seconds = seconds_of([&] { score(w, tap); });
}

// The prompt's keys and values in blocks of its own.
Sequence copy_of(World& w, std::uint64_t seed) {
  Runtime& r = *w.runtime;
  const Geometry& geometry = r.geometry();
  const std::vector<TokenId> tokens = filler(r, seed);
  Sequence s = open(r);
  for (std::uint32_t done = 0; done < kPrompt; done += geometry.tokens_per_block) {
    const StepNeed need{&s, std::min(geometry.tokens_per_block, kPrompt - done)};
    Reservation room = std::move(r.cache().reserve({&need, 1}).value());
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const std::uint32_t block = done / geometry.tokens_per_block;
      const LayerGroup& group = geometry.groups[g];
      if (block < geometry.first_block(group, kPrompt) ||
          block >= geometry.block_end(group, done + need.count))
        continue;
      r.copy_block(room.view(0, g, 0).blocks[block], w.prompt.table(g)[block],
                   geometry.block_bytes(group));
    }
    room.commit(0, std::span(tokens).subspan(done, need.count));
  }
  return s;
}

void decode(benchmark::State& state, const char* format, bool compacts) {
  World* const w = world_of(format);
  if (w == nullptr) return state.SkipWithError("QUIRE_TEST_MODEL names no model that opens");
  Runtime& r = *w->runtime;
  read_prompt(*w);
  const auto batch = static_cast<std::size_t>(state.range(0));
  const std::uint64_t before = r.cache().stats().referenced_bytes;
  std::vector<Sequence> sequences;
  double compacting = 0;
  for (std::size_t i = 0; i < batch; ++i) {
    sequences.push_back(copy_of(*w, 100 + i));
    if (!compacts) continue;
    const std::uint32_t group = r.geometry().places[0].group;
    std::vector<std::span<const std::uint32_t>> keep;
    for (std::uint32_t lane = 0; lane < r.geometry().groups[group].lanes(); ++lane) {
      const auto all = w->keep.lane(lane);
      keep.push_back(
          all.first(static_cast<std::size_t>(std::ranges::lower_bound(all, w->end) - all.begin())));
    }
    compacting += seconds_of([&] {
      if (!r.cache().compact(sequences.back(), group, w->end, keep).ok())
        state.SkipWithError("compacting failed");
    });
  }
  const std::uint64_t bytes = r.cache().stats().referenced_bytes - before;
  std::vector<TokenId> next(batch, 100);
  std::vector<StepItem> items(batch);
  double best = 1e9;
  for (auto _ : state) {
    for (std::size_t i = 0; i < batch; ++i) items[i] = {&sequences[i], {&next[i], 1}};
    const double seconds = seconds_of([&] {
      const auto made = r.step_greedy(items);
      std::ranges::transform(made.value(), next.begin(), &BestToken::token);
    });
    best = std::min(best, seconds);
  }
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(batch * state.iterations()),
                                                benchmark::Counter::kIsRate);
  state.counters["best_ms"] = best * 1e3;
  state.counters["bytes"] = static_cast<double>(bytes / batch);
  if (!compacts) return;
  state.counters["scoring"] = w->scoring_seconds / w->prefill_seconds;
  state.counters["compacting"] = compacting / static_cast<double>(batch) / w->prefill_seconds;
  state.counters["prefill_s"] = w->prefill_seconds;
}

// Endless text: each time a block is full the oldest one goes. `share` is that of compacting in the
// time of 32 tokens decoded one by one.
void stream(benchmark::State& state, const char* format) {
  World* const w = world_of(format);
  if (w == nullptr) return state.SkipWithError("QUIRE_TEST_MODEL names no model that opens");
  Runtime& r = *w->runtime;
  const Geometry& geometry = r.geometry();
  const std::uint32_t group = geometry.places[0].group, per_block = geometry.tokens_per_block;
  const auto window = static_cast<std::uint32_t>(state.range(0));
  Sequence s = open(r);
  const std::vector<TokenId> tokens = filler(r, 7);
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
    decoding += seconds_of([&] {
      for (std::uint32_t i = 0; i < per_block; ++i) read(1);
    });
    compacting += seconds_of(compact);
  }
  state.counters["compact_ms"] = compacting / static_cast<double>(state.iterations()) * 1e3;
  state.counters["share"] = compacting / (compacting + decoding);
}

BENCHMARK_CAPTURE(stream, f16, "f16")->Arg(1024)->Iterations(20)->UseRealTime();
BENCHMARK_CAPTURE(stream, int4, "hadamard-int4")->Arg(1024)->Iterations(20)->UseRealTime();
BENCHMARK_CAPTURE(decode, f16, "f16", false)->Arg(1)->Arg(8)->Iterations(40)->UseRealTime();
BENCHMARK_CAPTURE(decode, int4, "hadamard-int4", false)
    ->Arg(1)
    ->Arg(8)
    ->Iterations(40)
    ->UseRealTime();
BENCHMARK_CAPTURE(decode, f16_snapkv, "f16", true)->Arg(1)->Arg(8)->Iterations(40)->UseRealTime();
BENCHMARK_CAPTURE(decode, int4_snapkv, "hadamard-int4", true)
    ->Arg(1)
    ->Arg(8)
    ->Iterations(40)
    ->UseRealTime();

}  // namespace
}  // namespace quire
