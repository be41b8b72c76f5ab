// cli/bench.cc - `quire bench`: how fast prompts are read and tokens are made, on this machine,
// now.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/random.h"
#include "cli/command.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  ModelOptionsCli model;
  std::string what;
  std::uint32_t prompt = 512, depth = 128, count = 32, batch = 1, repeat = 3;
  bool json = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

// Token numbers that no other salt shares a prefix with, so that the prefix cache cannot help.
std::vector<TokenId> filler(const Runtime& runtime, std::uint32_t count, std::uint64_t salt) {
  Random random(salt);
  std::vector<TokenId> tokens(count);
  const std::uint32_t vocabulary = runtime.config().vocabulary;
  for (TokenId& t : tokens) t = static_cast<TokenId>(vocabulary / 8 + random.below(vocabulary / 2));
  return tokens;
}

Status read_all(Runtime& runtime, Sequence& s, std::span<const TokenId> prompt) {
  runtime.cache().attach(s, prompt);
  TRY([[maybe_unused]] const std::span<float> logits, runtime.read(s));
  return {};
}

Result<std::vector<double>> bench_prefill(Runtime& runtime, const Options& o) {
  std::vector<double> rates;
  // As a server that has idle moments does.
  const Geometry& geometry = runtime.geometry();
  double token_bytes = 0;
  for (const LayerGroup& g : geometry.groups) token_bytes += geometry.bytes_per_token(g);
  while (runtime.cache().prepare(
      static_cast<std::uint64_t>(token_bytes * o.prompt * (o.repeat + 1)))) {
  }
  for (std::uint32_t i = 0; i <= o.repeat; ++i) {  // the first warms up and is not counted
    const std::vector<TokenId> prompt =
        filler(runtime, i == 0 ? std::min(o.prompt, 256u) : o.prompt, 77 + i);
    TRY(Sequence s, runtime.open_sequence(o.prompt + 1));
    const auto start = Clock::now();
    TRY_STATUS(read_all(runtime, s, prompt));
    if (i > 0) rates.push_back(o.prompt / seconds_since(start));
  }
  return rates;
}

// Gives a sequence the keys and values of another under tokens of its own: same bytes in blocks of
// its own, without computing them again. What decoding costs does not depend on the numbers.
Status copy_context(Runtime& runtime, Sequence& from, Sequence& to, std::uint32_t depth,
                    std::uint64_t salt) {
  const std::vector<TokenId> tokens = filler(runtime, depth, salt);
  const Geometry& geometry = runtime.geometry();
  for (std::uint32_t done = 0; done < depth;) {
    const std::uint32_t count = std::min(geometry.tokens_per_block, depth - done);
    const StepNeed need{&to, count};
    TRY(Reservation room, runtime.cache().reserve({&need, 1}));
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const std::uint32_t block = done / geometry.tokens_per_block;
      const LayerGroup& group = geometry.groups[g];
      if (block < geometry.first_block(group, depth) ||
          block >= geometry.block_end(group, done + count))
        continue;  // gone from the source already, or not there yet
      runtime.copy_block(room.view(0, g, 0).blocks[block], from.table(g)[block],
                         geometry.block_bytes(group));
    }
    room.commit(0, std::span(tokens).subspan(done, count));
    done += count;
  }
  return {};
}

Result<std::vector<double>> bench_decode(Runtime& runtime, const Options& o) {
  std::vector<Sequence> sequences;
  for (std::uint32_t b = 0; b < o.batch; ++b) {
    const std::uint32_t capacity = o.depth + o.count + 1;
    TRY(Sequence s, b == 0 ? runtime.open_sequence(capacity) : runtime.empty_sequence(capacity));
    sequences.push_back(std::move(s));
    if (b == 0) {
      TRY_STATUS(read_all(runtime, sequences[0], filler(runtime, o.depth, 1)));
    } else {
      TRY_STATUS(copy_context(runtime, sequences[0], sequences[b], o.depth, 1000 + b));
    }
  }
  std::vector<TokenId> next(o.batch);
  std::vector<StepItem> items(o.batch);
  std::vector<double> rates;
  for (std::uint32_t b = 0; b < o.batch; ++b) next[b] = 100 + b;
  for (std::uint32_t i = 0; i <= o.repeat; ++i) {
    const std::uint32_t steps = i == 0 ? std::min(o.count, 4u) : o.count;
    const auto start = Clock::now();
    for (std::uint32_t step = 0; step < steps; ++step) {
      for (std::uint32_t b = 0; b < o.batch; ++b)
        items[b] = {&sequences[b], {&next[b], 1}, Logits::last};
      TRY(const std::span<const BestToken> best, runtime.step_greedy(items));
      std::ranges::transform(best, next.begin(), &BestToken::token);
    }
    if (i > 0) rates.push_back(steps * o.batch / seconds_since(start));
    for (Sequence& s : sequences) {
      runtime.cache().truncate(s, o.depth);
      TRY_STATUS(runtime.prefill(s, o.depth));  // what a lossy format could not take back
    }
  }
  return rates;
}

int run(Options& o) {
  if (o.what == "batch") {
    if (o.batch == 1) o.batch = 8;
    if (o.depth == 128) o.depth = 256;
  }
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  Runtime& r = *runtime.value();
  const std::uint32_t longest = o.what == "prefill" ? o.prompt : o.depth + o.count + 1;
  if (longest > r.context() || o.prompt < 2 || o.depth < 2 || o.count == 0 || o.batch == 0 ||
      o.repeat == 0)
    return fail(kUsage,
                fmt::format("{} tokens do not fit the context of {}", longest, r.context()));
  const auto rates = o.what == "prefill" ? bench_prefill(r, o) : bench_decode(r, o);
  if (!rates.ok()) return fail(rates.error());
  const double rate = median(rates.value());
  const auto [low, high] = std::minmax_element(rates.value().begin(), rates.value().end());
  if (!o.json) {
    if (o.what == "prefill")
      fmt::print("prefill {} tokens: ", o.prompt);
    else
      fmt::print("decode {} sequence{} at depth {}: ", o.batch, o.batch == 1 ? "" : "s", o.depth);
    fmt::print("{:.1f} tokens/s (median of {}, {:.1f} to {:.1f}; {} threads, {})\n", rate,
               rates.value().size(), *low, *high, r.threads(),
               r.model().device() ? "cuda" : isa_name(r.model().options().isa));
    return kOk;
  }
  Json out{{"bench", o.what},
           {"tokens_per_second", rate},
           {"min", *low},
           {"max", *high},
           {"repeat", rates.value().size()},
           {"threads", r.threads()},
           {"kv_format", r.kv_format()},
           {"isa", isa_name(r.model().options().isa)},
           {"activations", o.model.activations}};
  if (o.what == "prefill") {
    out["prompt"] = o.prompt;
  } else {
    out["depth"] = o.depth;
    out["batch"] = o.batch;
    out["n"] = o.count;
  }
  print_json(out);
  return kOk;
}

std::function<int()> declare(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("WHAT", o->what, "prefill, decode or batch")
      ->required()
      ->check(CLI::IsMember({"prefill", "decode", "batch"}));
  add_model_options(app, o->model);
  app.add_option("--prompt", o->prompt, "tokens to read (512)");
  app.add_option("--depth", o->depth, "tokens before the measured ones (128)");
  app.add_option("-n", o->count, "tokens to make per sequence (32)");
  app.add_option("--batch", o->batch, "sequences side by side (1)")->check(CLI::Range(1, 512));
  app.add_option("--repeat", o->repeat, "measurements; the median counts (3)");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run(*o); };
}

}  // namespace

extern const Command kBench = {
    "bench", "measure prefill and decode speed",
    "examples:\n"
    "  quire bench prefill model.gguf --prompt 2048\n"
    "  quire bench decode model.gguf --depth 7000 -n 32 --kv-format f16 --json\n"
    "  quire bench batch model.gguf --batch 32 --depth 256\n"
    "  quire bench serve --help                    servers under load\n"
    "  quire bench kv                              the cache alone",
    declare};

}  // namespace quire::cli
