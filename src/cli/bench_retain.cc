// cli/bench_retain.cc - `quire bench retain`: what a long prompt holds, and how fast it is answered,
// when a policy keeps a part of it in a small format; against all of it in f16, in the same run.
#include <fmt/core.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/model_options.h"
#include "lab/speed/decode_batch.h"
#include "lab/speed/timing.h"

namespace quire::cli {
namespace {

using namespace lab;

struct BenchRetainOptions {
  ModelOptionsCli model;
  std::uint32_t prompt = 8000, count = 16, batch = 8, repeat = 3;
  bool json = false;
};

// Tokens per second of both, and the median of their ratios; measured in turn.
struct Rates {
  double whole = 0, kept = 0, ratio = 0;
};

Result<Rates> compare(DecodeBatch& whole, DecodeBatch& kept, const BenchRetainOptions& o,
                      std::uint32_t width) {
  std::vector<double> before, after, ratios;
  for (std::uint32_t i = 0; i <= o.repeat; ++i) {  // the first warms up
    const std::uint32_t steps = i == 0 ? std::min(o.count, 2u) : o.count;
    TRY(const double x, whole.run(steps, width));
    TRY(const double y, kept.run(steps, width));
    if (i == 0) continue;
    before.push_back(x);
    after.push_back(y);
    ratios.push_back(y / x);
  }
  return Rates{median(before), median(after), median(ratios)};
}

Result<Json> measure(const BenchRetainOptions& o, Runtime& r) {
  const StoragePolicy exact = r.storage().rows();
  DecodeBatch whole(r, o.prompt, o.count, o.batch), kept(r, o.prompt, o.count, o.batch);
  TRY_STATUS(kept.fill_kept(r.storage(), r.retain()));
  const std::uint64_t evictable = r.cache().stats().cached_bytes;
  TRY_STATUS(whole.fill(exact, nullptr));
  Json decode = Json::array();
  for (const std::uint32_t width : {1u, o.batch}) {
    if (width == 1 && !decode.empty()) break;
    TRY(const Rates rates, compare(whole, kept, o, width));
    decode.push_back({{"sequences", width},
                      {"tokens_per_second", rates.kept},
                      {"tokens_per_second_whole", rates.whole},
                      {"ratio", rates.ratio}});
  }
  return Json{
      {"bench", "retain"},
      {"policy", r.retain()->text()},
      {"kv_format", r.kv_format()},
      {"whole_format", exact.name()},
      {"prompt", o.prompt},
      {"bytes", kept.bytes()},
      {"bytes_whole", whole.bytes()},
      {"bytes_share", static_cast<double>(kept.bytes()) / static_cast<double>(whole.bytes())},
      {"evictable_bytes", evictable},
      {"prefill_seconds", kept.prefill_s()},
      {"prefill_seconds_whole", whole.prefill_s()},
      {"compress_seconds", kept.compress_s()},
      {"compress_share", kept.compress_s() / kept.prefill_s()},
      {"decode", decode},
      {"n", o.count},
      {"repeat", o.repeat},
      {"threads", r.threads()}};
}

void print(const Json& j) {
  fmt::print("a prompt of {} tokens: {} in {}, against all of it in {} ({} threads)\n",
             j["prompt"].get<int>(), j["policy"].get<std::string>(),
             j["kv_format"].get<std::string>(), j["whole_format"].get<std::string>(),
             j["threads"].get<int>());
  fmt::print("  holds         {:>12} bytes of {}, {:.1f} %; {} more are cached and may go\n",
             j["bytes"].get<std::uint64_t>(), j["bytes_whole"].get<std::uint64_t>(),
             100 * j["bytes_share"].get<double>(), j["evictable_bytes"].get<std::uint64_t>());
  fmt::print("  compression   {:>9.3f} s of {:.2f} s prefill, {:.1f} %\n",
             j["compress_seconds"].get<double>(), j["prefill_seconds"].get<double>(),
             100 * j["compress_share"].get<double>());
  for (const Json& d : j["decode"])
    fmt::print("  decode, {:>3}   {:>9.1f} tokens/s against {:.1f}, {:.2f}x (medians of {})\n",
               d["sequences"].get<int>(), d["tokens_per_second"].get<double>(),
               d["tokens_per_second_whole"].get<double>(), d["ratio"].get<double>(),
               j["repeat"].get<int>());
}

int run_bench_retain(BenchRetainOptions& o) {
  if (o.model.kv_format == "auto") o.model.kv_format = "hadamard-int4";
  if (o.model.kv.budget.empty()) o.model.kv.budget = "snapkv:20%";
  o.model.kv.allow_lossy = true;  // nobody reads the answers
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  Runtime& r = *runtime.value();
  const std::uint64_t longest = std::uint64_t{o.prompt} + o.count + 1;
  if (longest > r.context())
    return fail(kUsage,
                fmt::format("{} tokens do not fit the context of {}", longest, r.context()));
  const auto measured = measure(o, r);
  if (!measured.ok()) return fail(measured.error());
  if (o.json)
    print_json(measured.value());
  else
    print(measured.value());
  return kOk;
}

std::function<int()> declare_bench_retain(CLI::App& app) {
  auto o = std::make_shared<BenchRetainOptions>();
  add_model_options(app, o->model);
  app.add_option("--kv-budget", o->model.kv.budget, "what stays, METHOD:AMOUNT (snapkv:20%)");
  app.add_option("--prompt", o->prompt, "tokens to read (8000)")->check(CLI::Range(2u, UINT32_MAX));
  app.add_option("-n", o->count, "tokens to make per sequence and repetition (16)")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", o->batch, "sequences side by side, besides one alone (8)")
      ->check(CLI::Range(1, 64));
  app.add_option("--repeat", o->repeat, "measurements; the median counts (3)")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_bench_retain(*o); };
}

}  // namespace

extern const Command kBenchRetain = {
    "bench retain", "measure what keeping a part of a long prompt saves",
    "The format is hadamard-int4 unless --kv-format names another.\n"
    "examples:\n"
    "  quire bench retain model.gguf\n"
    "  quire bench retain model.gguf --prompt 4000 --kv-budget kvzip:30% --kv-format int8 --json",
    declare_bench_retain};

}  // namespace quire::cli
