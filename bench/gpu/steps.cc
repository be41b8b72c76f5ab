// quire_gpu_steps: whole steps on the GPU, without server or command line.
//
//   quire_gpu_steps speed CONFIG.json    decode steps, prefill and cached prompts at that shape,
//   with
//                                        random weights
//   quire_gpu_steps same MODEL           `quire selftest --all` on the GPU, and its logits against
//   the CPU's; a config.json stands for random weights
//
// Prints one JSON object per line; bench/gpu/run makes a table of them.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/explain.h"
#include "engine/runtime.h"
#include "engine/selftest.h"
#include "engine/stepper.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

template <class T>
T need(Result<T> r) {
  if (r.ok()) return std::move(r.value());
  fmt::print(stderr, "{}\n", r.error().message);
  std::exit(1);
}
void need(const Status& s) {
  if (s.ok()) return;
  fmt::print(stderr, "{}\n", s.error().message);
  std::exit(1);
}

std::vector<TokenId> filler(const Runtime& r, std::uint32_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& t : tokens) t = static_cast<TokenId>(random.below(r.config().vocabulary));
  return tokens;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// A sequence's blocks hold whatever the memory held: what a step costs does not depend on it.
Sequence with_context(Runtime& r, std::uint32_t depth, std::uint32_t extra, std::uint64_t seed) {
  Sequence s = need(r.empty_sequence(depth + extra));
  const std::vector<TokenId> tokens = filler(r, depth, seed);
  for (std::uint32_t done = 0; done < depth;) {
    const std::uint32_t count = std::min(4096u, depth - done);
    const StepNeed wanted{&s, count};
    Reservation room = need(r.cache().reserve({&wanted, 1}));
    room.commit(0, std::span(tokens).subspan(done, count));
    done += count;
  }
  return s;
}

// Steps as the engine runs them, each submitted before the one before it is over, and one at a time.
// `shared`: all sequences have the same context.
void decode(Runtime& r, std::uint32_t batch, std::uint32_t depth, bool shared = false) {
  constexpr std::uint32_t kSteps = 12, kWarm = 4;
  Stepper stepper(r);
  r.cache().clear(true);
  std::vector<Sequence> sequences;
  for (std::uint32_t b = 0; b < batch; ++b)
    sequences.push_back(b == 0 || !shared ? with_context(r, depth, 2 * (kSteps + kWarm), 100 + b)
                                          : need(r.cache().fork(sequences[0])));
  std::vector<TokenId> next(batch, 17);
  std::vector<StepItem> items;
  std::vector<std::uint32_t> from;
  for (std::uint32_t b = 0; b < batch; ++b) {
    items.push_back({&sequences[b], {&next[b], 1}, Logits::last});
    from.push_back(b);
  }
  double ms[2];
  for (const bool ahead : {false, true}) {
    std::vector<double> times;
    std::optional<Step> now;
    auto start = Clock::now();
    for (std::uint32_t step = 0; step < kSteps + kWarm; ++step) {
      std::optional<Step> then;
      const StepAsk best{.want = StepWant::best, .logprobs = false},
          next_best{.want = StepWant::best, .logprobs = false, .draws = {}, .from = from};
      if (!now) now.emplace(need(stepper.submit(items, best)));
      if (ahead && step + 1 < kSteps + kWarm) then.emplace(need(stepper.submit(items, next_best)));
      const StepResult result = need(stepper.complete(*now));
      stepper.commit(*now, items);
      std::ranges::transform(result.best, next.begin(), &BestToken::token);
      now.reset();
      if (then) now.emplace(std::move(*then));
      if (step >= kWarm) times.push_back(ms_since(start));
      start = Clock::now();
    }
    ms[ahead] = median(times);
  }
  fmt::print(
      "{{\"step\": \"{}\", \"format\": \"{}\", \"batch\": {}, \"context\": {}, \"ms\": {:.3f}, "
      "\"one_at_a_time_ms\": {:.3f}}}\n",
      shared ? "shared" : "decode", r.kv_format(), batch, depth, ms[true], ms[false]);
  std::fflush(stdout);
}

void prefill(Runtime& r, std::uint32_t tokens) {
  Stepper stepper(r);
  std::vector<double> times, forwards;
  for (std::uint64_t i = 0; i < 3; ++i) {
    r.cache().clear(true);
    Sequence s = need(r.open_sequence(tokens + 1));
    const std::vector<TokenId> prompt = filler(r, tokens, 7 + i);
    r.cache().attach(s, prompt);
    const auto start = Clock::now();
    const Nanoseconds before = stepper.forward_time();
    const StepItem all{&s, prompt, Logits::last};
    need(stepper.run_best({&all, 1}));
    times.push_back(ms_since(start));
    forwards.push_back(static_cast<double>(stepper.forward_time() - before) * 1e-6);
  }
  fmt::print(
      "{{\"step\": \"prefill\", \"format\": \"{}\", \"tokens\": {}, \"ms\": {:.2f}, "
      "\"forward_ms\": {:.2f}, "
      "\"tokens_per_s\": {:.0f}}}\n",
      r.kv_format(), tokens, median(times), median(forwards), tokens / median(times) * 1000);
  std::fflush(stdout);
}

void cached(Runtime& r, std::uint32_t tokens, std::uint32_t cold) {
  Stepper stepper(r);
  r.cache().clear(true);
  const std::vector<TokenId> prompt = filler(r, tokens, 5);
  {
    Sequence s = need(r.open_sequence(tokens + 1));
    r.cache().attach(s, std::span(prompt).first(tokens - cold));
    need(stepper.prefill(s, tokens - cold));
  }
  std::vector<double> times, forwards;
  std::uint32_t hit = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    std::vector<TokenId> mine = prompt;
    for (std::uint32_t k = tokens - cold; k < tokens; ++k) mine[k] = (mine[k] + i + 1) % 1000;
    const auto start = Clock::now();
    Sequence s = need(r.open_sequence(tokens + 1));
    hit = r.cache().attach(s, mine).tokens;
    const StepItem rest{&s, std::span(mine).subspan(s.length()), Logits::last};
    const Nanoseconds before = stepper.forward_time();
    need(stepper.run_best({&rest, 1}));
    if (i > 0) times.push_back(ms_since(start));
    if (i > 0) forwards.push_back(static_cast<double>(stepper.forward_time() - before) * 1e-6);
  }
  fmt::print(
      "{{\"step\": \"cached\", \"tokens\": {}, \"hit\": {}, \"ms\": {:.2f}, \"forward_ms\": "
      "{:.2f}}}\n",
      tokens, hit, median(times), median(forwards));
  std::fflush(stdout);
}

struct SilentSink final : RequestSink {
  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done&) override {}
  void failed(const Failure& f) override {
    fmt::print(stderr, "{}\n", f.message);
    std::exit(1);
  }
};

// Requests that come all at once, through the engine: 64 to 1,024 tokens each, 256 answered.
void requests(Runtime& r, std::uint32_t count, const char* how, const SamplingOptions& sampling,
              std::optional<bool> ahead = {}) {
  r.cache().clear(true);
  const ServiceOptions options{
      .step_tokens = 8192, .sequences_max = count, .queue_max = count, .ahead = ahead};
  RequestLog log(64);
  SteadyClock clock;
  Engine engine(r, options, log, clock);
  Random random(11);
  std::uint64_t prompt_tokens = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    Request q;
    q.prompt = filler(r, 64 + static_cast<std::uint32_t>(random.below(961)), 1000 + i);
    q.tokens_max = 256;
    q.ignore_end = true;
    q.sampling = sampling;
    q.sampling.seed = i;
    prompt_tokens += q.prompt.size();
    PreparedJob p = prepare_job(r, options, std::move(q), std::make_shared<SilentSink>());
    p.job->id = static_cast<JobId>(i);
    p.job->submitted = clock.now();
    engine.submit(std::move(p.job));
  }
  const auto start = Clock::now();
  while (engine.step()) continue;
  const double seconds = ms_since(start) / 1000;
  const ServiceStats& stats = engine.stats();
  fmt::print(
      "{{\"step\": \"requests\", \"sampling\": \"{}\", \"count\": {}, \"prompt_tokens\": {}, "
      "\"tokens\": {}, \"s\": {:.2f}, \"tokens_per_s\": {:.0f}, \"steps\": {}, \"ahead\": {}, "
      "\"forward_s\": {:.2f}, \"sample_s\": {:.2f}}}\n",
      how, count, prompt_tokens, stats.tokens_generated, seconds,
      static_cast<double>(stats.tokens_generated) / seconds, stats.steps, stats.steps_ahead,
      stats.forward_seconds, stats.sample_seconds);
  std::fflush(stdout);
}

std::unique_ptr<Runtime> open(const std::string& config, const std::string& format,
                              bool fast = false, WeightStorage weights = WeightStorage::bf16) {
  return need(Runtime::open(config, {.device = DeviceKind::cuda,
                                     .random_weights = true,
                                     .fast = fast,
                                     .weights = weights,
                                     .kv_format = format,
                                     .rows_max = 8192}));
}

int speed(const std::string& config) {
  const auto start = Clock::now();
  std::unique_ptr<Runtime> runtime = open(config, "bf16");
  Runtime& r = *runtime;
  {
    Sequence s = need(r.empty_sequence(64));
    const TokenId first = 5;
    const StepItem item{&s, {&first, 1}, Logits::last};
    need(Stepper(r).run_best({&item, 1}));
  }
  fmt::print(
      "{{\"step\": \"start\", \"to_first_token_s\": {:.2f}, \"weights_gib\": {:.2f}, \"kv_gib\": "
      "{:.1f}}}\n",
      ms_since(start) / 1000, static_cast<double>(r.executor().weights().bytes) / 0x1p30,
      static_cast<double>(r.kv_cache_bytes()) / 0x1p30);
  std::fflush(stdout);
  const auto most = [&](Runtime& of) {
    for (const auto& [batch, context] : {std::pair{1u, 128u},
                                         {1u, 32768u},
                                         {8u, 8192u},
                                         {16u, 1024u},
                                         {32u, 1024u},
                                         {128u, 1024u},
                                         {256u, 512u},
                                         {64u, 8192u}})
      decode(of, batch, context);
    prefill(of, 2048);
    prefill(of, 8192);
    cached(of, 32768, 68);
  };
  most(r);
  decode(r, 64, 8192, true);
  requests(r, 512, "greedy", {});
  requests(r, 512, "greedy, no step ahead", {}, false);
  requests(r, 512, "temperature 1, top-k 40", {.temperature = 1, .top_k = 40});
  for (const char* format : {"fp8-e4m3", "int8", "hadamard-int4-head", "hadamard-int2-head"}) {
    runtime = {};  // there is room for one
    runtime = open(config, format);
    decode(*runtime, 64, 8192);
    decode(*runtime, 128, 1024);
    prefill(*runtime, 2048);
    prefill(*runtime, 8192);
  }
  runtime = {};
  runtime = open(config, "bf16", false, WeightStorage::packed);
  fmt::print("{{\"step\": \"packed\", \"weights_gib\": {:.2f}}}\n",  // what follows is
             static_cast<double>(runtime->executor().weights().bytes) / 0x1p30);
  most(*runtime);
  runtime = {};
  runtime = open(config, "bf16", true);
  fmt::print("{{\"step\": \"fast\"}}\n");  // likewise
  most(*runtime);
  requests(*runtime, 512, "greedy", {});
  return 0;
}

struct KeepingSink final : RequestSink {
  std::vector<TokenId> tokens;
  void token(std::uint32_t, const Choice& c) override { tokens.push_back(c.token); }
  void finished(std::uint32_t, Finish) override {}
  void done(const Done&) override {}
  void failed(const Failure& f) override {
    fmt::print(stderr, "{}\n", f.message);
    std::exit(1);
  }
};

// Requests of these kinds of sampling, together and alone: each must draw the same tokens. Alone no
// step is submitted ahead.
void drawn(Runtime& r, const char* how, std::span<const SamplingOptions> kinds) {
  constexpr std::uint32_t kCount = 36;
  const std::vector<TokenId> text = r.tokenizer().encode("A quire is four sheets of paper, folded");
  std::uint64_t steps_ahead = 0;
  const auto answers = [&](std::uint32_t first, std::uint32_t count) {
    const ServiceOptions options{
        .step_tokens = 8192, .sequences_max = kCount, .queue_max = kCount, .ahead = count > 1};
    RequestLog log(64);
    SteadyClock clock;
    Engine engine(r, options, log, clock);
    std::vector<std::shared_ptr<KeepingSink>> sinks;
    for (std::uint32_t i = first; i < first + count; ++i) {
      Request q;
      q.prompt = text;
      q.prompt.push_back(static_cast<TokenId>(100 + i));
      q.tokens_max = 20 + i;
      q.stop_tokens = {q.prompt[i % text.size()]};
      q.sampling = kinds[i % kinds.size()];
      q.sampling.seed = i;
      sinks.push_back(std::make_shared<KeepingSink>());
      PreparedJob p = prepare_job(r, options, std::move(q), sinks.back());
      p.job->id = static_cast<JobId>(i);
      p.job->submitted = clock.now();
      engine.submit(std::move(p.job));
    }
    while (engine.step()) continue;
    steps_ahead += engine.stats().steps_ahead;
    std::vector<std::vector<TokenId>> all;
    for (const auto& sink : sinks) all.push_back(sink->tokens);
    return all;
  };
  const auto together = answers(0, kCount);
  std::uint32_t different = 0;
  for (std::uint32_t i = 0; i < kCount; ++i) different += answers(i, 1)[0] != together[i];
  fmt::print(
      "{{\"step\": \"drawn\", \"sampling\": \"{}\", \"requests\": {}, \"ahead\": {}, "
      "\"different\": {}}}\n",
      how, kCount, steps_ahead, different);
  std::fflush(stdout);
}

// KL divergence of the GPU's distribution from the CPU's with 16-bit activations, over a prompt that
// begins as the model asks for (`special`), or in the middle.
void against_cpu(const std::string& model, const RuntimeOptions& gpu, bool special) {
  std::vector<std::vector<float>> rows[2];
  for (int side = 0; side < 2; ++side) {
    RuntimeOptions o{.random_weights = gpu.random_weights,
                     .activations = Activations::int16,
                     .kv_cache_bytes = std::uint64_t{1} << 30};
    if (side == 1) o = gpu;
    std::unique_ptr<Runtime> r = need(Runtime::open(model, o));
    const std::vector<TokenId> prompt = r->tokenizer().encode(
        "The history of printing begins with seals and stamps. Books were copied by hand, "
        "one quire of parchment after another, until movable type made copies cheap. A quire "
        "was four sheets folded once, eight leaves, sixteen pages; gathered and sewn, quires "
        "became a book. Later the word came to mean a twentieth of a ream of paper.",
        {.add_special = special});
    Sequence s = need(r->empty_sequence(static_cast<std::uint32_t>(prompt.size())));
    const StepItem all{&s, prompt, Logits::all};
    const std::span<float> logits = need(Stepper(*r).run({&all, 1}));
    const std::uint32_t v = r->config().vocabulary;
    for (std::size_t i = 0; i < prompt.size(); ++i)
      rows[side].emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(i * v),
                              logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * v));
  }
  double kl = 0, top = 0;
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    double sums[2] = {}, most[2];
    for (int side = 0; side < 2; ++side) {
      most[side] = *std::max_element(rows[side][i].begin(), rows[side][i].end());
      for (const float x : rows[side][i]) sums[side] += std::exp(x - most[side]);
    }
    for (std::size_t t = 0; t < rows[0][i].size(); ++t) {
      const double p = rows[0][i][t] - most[0] - std::log(sums[0]),
                   q = rows[1][i][t] - most[1] - std::log(sums[1]);
      kl += std::exp(p) * (p - q);
    }
    const auto best = [&](int side) {
      return std::max_element(rows[side][i].begin(), rows[side][i].end()) - rows[side][i].begin();
    };
    top += best(0) == best(1);
  }
  const double n = static_cast<double>(rows[0].size());
  fmt::print(
      "{{\"step\": \"against cpu\", \"special\": {}, \"tokens\": {}, \"kl\": {:.6f}, \"same_top\": "
      "{:.3f}}}\n",
      special, rows[0].size(), kl / n, top / n);
  std::fflush(stdout);
}

// Packed weights and bf16 ones must give the same logits: of a prompt in pieces of 1 to 200 tokens.
void packed_and_not(const std::string& model, RuntimeOptions gpu) {
  std::vector<float> logits[2];
  std::uint64_t bytes[2];
  for (const bool packed : {false, true}) {
    gpu.weights = packed ? WeightStorage::packed : WeightStorage::bf16;
    std::unique_ptr<Runtime> r = need(Runtime::open(model, gpu));
    bytes[packed] = r->executor().weights().bytes;
    Sequence s = need(r->empty_sequence(512));
    const std::vector<TokenId> tokens = filler(*r, 400, 3);
    std::size_t done = 0;
    for (const std::size_t count : {1, 2, 7, 8, 16, 32, 33, 100, 200}) {
      const StepItem item{&s, std::span(tokens).subspan(done, count), Logits::all};
      const std::span<float> some = need(Stepper(*r).run({&item, 1}));
      logits[packed].insert(logits[packed].end(), some.begin(), some.end());
      done += count;
    }
  }
  std::uint64_t different = 0;
  for (std::size_t i = 0; i < logits[0].size(); ++i)
    different +=
        std::bit_cast<std::uint32_t>(logits[0][i]) != std::bit_cast<std::uint32_t>(logits[1][i]);
  fmt::print(
      "{{\"step\": \"packed and not\", \"logits\": {}, \"different\": {}, \"bf16_mb\": {:.1f}, "
      "\"packed_mb\": {:.1f}}}\n",
      logits[0].size(), different, static_cast<double>(bytes[0]) / 1e6,
      static_cast<double>(bytes[1]) / 1e6);
  std::fflush(stdout);
}

int same(const std::string& model) {
  const bool random = model.ends_with(".json");
  const RuntimeOptions gpu{.device = DeviceKind::cuda,
                           .random_weights = random,
                           .kv_cache_bytes = std::uint64_t{2} << 30};
  std::uint64_t checks = 0, wrong = 0;
  const bool held = need(selftest(model, gpu, true, [&](const SelftestCheck& c) {
    ++checks;
    wrong += !c.ok;
    if (!c.ok) fmt::print(stderr, "DIFFERS {}: {}\n", c.name, c.detail);
  }));
  fmt::print("{{\"step\": \"selftest\", \"same\": {}, \"checks\": {}, \"wrong\": {}}}\n", held,
             checks, wrong);
  std::fflush(stdout);
  if (!random) packed_and_not(model, gpu);

  {
    std::unique_ptr<Runtime> r = need(Runtime::open(model, gpu));
    const SamplingOptions greedy{},
        kinds[] = {{.temperature = 0},
                   {.temperature = 0.8f},
                   {.temperature = 1, .top_k = 40},
                   {.temperature = 1, .top_p = 0.9f},
                   {.temperature = 1.2f, .min_p = 0.05f},
                   {.temperature = 1, .top_k = 60, .typical_p = 0.8f},
                   {.temperature = 0.9f, .top_p = 0.95f, .presence_penalty = 0.5f},
                   {.temperature = 0, .repetition_penalty = 1.2f},
                   {.temperature = 1, .top_p = 0.8f, .logit_bias = {{20, 3.0f}}}};
    if (!random) drawn(*r, "nine kinds of sampling", kinds);
    if (!random) drawn(*r, "the most likely token", {&greedy, 1});
    if (random || r->tokenizer().add_bos()) against_cpu(model, gpu, false);
  }
  if (!random) against_cpu(model, gpu, true);
  return held ? 0 : 1;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  if (what == "speed") return quire::speed(argv[2]);
  if (what == "same") return quire::same(argv[2]);
  fmt::print(stderr, "usage: quire_gpu_steps speed CONFIG.json | same MODEL\n");
  return 2;
}
