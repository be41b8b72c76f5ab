// How much of a step is not the model: 32 answers decode together, as a server's would. Each goes
// on with another page of docs/ARCHITECTURE.md, or with random tokens, after which a model hardly
// knows what to say: the worst case of choosing among all tokens.
//
//   QUIRE_TEST_MODEL=model.gguf build/release/src/engine_engine_bench      in the project's folder
//
// `outside` is the share of the engine's time that is not spent in the forward pass, `sampling` the
// part of it that turns logits into tokens.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/explain.h"

namespace quire {
namespace {

struct SilentSink final : RequestSink {
  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done&) override {}
  void failed(const Failure& f) override {  // what is left at the end, and nothing before
    if (f.kind != FailureKind::draining) std::fprintf(stderr, "%s\n", f.message.c_str());
  }
};

enum class Prompts { text, random };
constexpr std::size_t kPromptTokens = 64;

std::vector<TokenId> text_tokens(const Runtime& runtime) {
  std::ifstream file("docs/ARCHITECTURE.md");
  std::stringstream text;
  text << file.rdbuf();
  return runtime.tokenizer().encode(text.str());
}

void decode(benchmark::State& state, const SamplingOptions& sampling,
            Prompts prompts = Prompts::text) {
  const char* path = std::getenv("QUIRE_TEST_MODEL");
  if (!path) return state.SkipWithError("QUIRE_TEST_MODEL is not set");
  auto runtime = Runtime::open(path, {.kv_cache_bytes = std::uint64_t{2} << 30});
  if (!runtime.ok()) return state.SkipWithError(runtime.error().message.c_str());
  const ServiceOptions options{};
  RequestLog log(64);
  SteadyClock clock;
  Engine engine(*runtime.value(), options, log, clock);
  Random random(1);
  const auto batch = static_cast<std::uint64_t>(state.range(0));
  const std::vector<TokenId> text = text_tokens(*runtime.value());
  if (text.size() < batch + kPromptTokens)
    return state.SkipWithError("docs/ARCHITECTURE.md is not here: run it in the project's folder");
  for (std::uint64_t i = 0; i < batch; ++i) {
    Request r;
    const std::size_t first = i * (text.size() - kPromptTokens) / batch;
    for (std::size_t t = first; t < first + kPromptTokens; ++t)
      r.prompt.push_back(
          prompts == Prompts::text ? text[t] : static_cast<TokenId>(1000 + random.below(20000)));
    r.tokens_max = 4000;
    r.ignore_end = true;
    r.sampling = sampling;
    r.sampling.seed = i;
    r.sampling.logprob = false;  // as in a server where nobody asks for it
    PreparedJob p =
        prepare_job(*runtime.value(), options, std::move(r), std::make_shared<SilentSink>());
    p.job->id = static_cast<JobId>(i);
    p.job->submitted = clock.now();
    engine.submit(std::move(p.job));
  }
  while (engine.stats().tokens_generated < 2 * batch) engine.step();  // all prompts are read
  const ServiceStats before = engine.stats();
  for (auto _ : state) engine.step();
  const ServiceStats& after = engine.stats();
  const double all = after.step_seconds - before.step_seconds;
  state.counters["outside"] = 1 - (after.forward_seconds - before.forward_seconds) / all;
  state.counters["sampling"] = (after.sample_seconds - before.sample_seconds) / all;
  state.counters["tokens/s"] =
      static_cast<double>(batch) * static_cast<double>(state.iterations()) / all;
}

void greedy(benchmark::State& state) { decode(state, {}); }
void drawn(benchmark::State& state) { decode(state, {.temperature = 1}); }
void top_p(benchmark::State& state) { decode(state, {.temperature = 0.8f, .top_p = 0.95f}); }
void top_p_random(benchmark::State& state) {
  decode(state, {.temperature = 1, .top_p = 0.9f}, Prompts::random);
}
void min_p(benchmark::State& state) { decode(state, {.temperature = 0.8f, .min_p = 0.05f}); }
void top_k(benchmark::State& state) {
  decode(state, {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f});
}

BENCHMARK(greedy)->Arg(1)->Arg(8)->Arg(32)->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK(drawn)->Arg(32)->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK(top_p)->Arg(32)->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK(top_p_random)->Arg(32)->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK(min_p)->Arg(32)->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK(top_k)->Arg(32)->Iterations(30)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quire
