// cli/bench.cc - `quire bench`: how fast this machine reads prompts and generates tokens.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/random.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/model_options.h"
#include "lab/speed/decode_batch.h"
#include "lab/speed/read_rate.h"
#include "lab/speed/timing.h"
#include "model/adapter/adapter.h"

namespace quire::cli {
namespace {

using namespace lab;

std::string_view machine(Runtime& r) {
  return r.executor().traits().device != DeviceKind::cpu ? "cuda" : isa_name(r.isa());
}

struct BenchOptions {
  ModelOptionsCli model;
  std::string what;
  std::uint32_t prompt = 512, depth = 128, count = 32, batch = 1, repeat = 3;
  std::uint32_t adapters = 0, adapter_rank = 16;
  std::string adapter_modules = "all";
  bool json = false;
};

Result<std::vector<double>> bench_prefill(Runtime& runtime, const BenchOptions& o) {
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
    const Stopwatch watch;
    TRY_STATUS(read_all(runtime, s, prompt));
    if (i > 0) rates.push_back(o.prompt / watch.seconds());
  }
  return rates;
}

void print_scores(const BenchOptions& o, Runtime& r, const std::vector<DecodeScore>& scores) {
  const DecodeScore& first = scores[0];
  const auto [low, high] = std::minmax_element(first.rates.begin(), first.rates.end());
  fmt::print(
      "decode {} sequence{} at depth {}: {:.1f} tokens/s (median of {}, {:.1f} to {:.1f}; {} "
      "threads, {})\n",
      o.batch, o.batch == 1 ? "" : "s", o.depth, median(first.rates), first.rates.size(), *low,
      *high, r.threads(), machine(r));
}

// Speed does not depend on their numbers.
Result<DecodeBatch::AdapterSets> random_adapters(const BenchOptions& o, const Runtime& r) {
  constexpr Adapted kSome[] = {Adapted::q, Adapted::v};
  const bool all = o.adapter_modules == "all";
  DecodeBatch::AdapterSets sets;
  for (std::uint32_t i = 0; i < o.adapters; ++i) {
    TRY(auto adapter, Adapter::random(r.config(), o.adapter_rank, i + 1, 1e-4f, {},
                                      all ? std::span<const Adapted>() : kSome));
    TRY(auto set, AdapterSet::make({{std::move(adapter)}}));
    sets.push_back(std::move(set));
  }
  return sets;
}

int run_decode(const BenchOptions& o, Runtime& r, std::vector<StoragePolicy> ways) {
  const bool on_cpu = r.executor().traits().device == DeviceKind::cpu;
  const auto adapters = random_adapters(o, r);
  if (!adapters.ok()) return fail(adapters.error());
  const DecodeQuestion question{std::move(ways), o.depth,  o.count,
                                o.batch,         o.repeat, adapters.value()};
  const auto before = on_cpu ? read_rate(r.pool()) : 0.0;
  if (!before.ok()) return fail(before.error());
  const auto measured = bench_decode(r, question);
  if (!measured.ok()) return fail(measured.error());
  const auto after = on_cpu ? read_rate(r.pool()) : 0.0;
  if (!after.ok()) return fail(after.error());
  const double ceiling = std::max(before.value(), after.value());
  const auto weights = static_cast<double>(r.executor().weights().bytes);
  // With small models and short contexts part of this stays in a cache: then it may exceed 1.
  const auto share = [&](const DecodeScore& s) {
    return (weights + static_cast<double>(s.kv_bytes)) * median(s.rates) / o.batch / ceiling;
  };
  if (!o.json) {
    print_scores(o, r, measured.value());
    if (!on_cpu) return kOk;
    fmt::print("memory reads {:.1f} GB/s; a step reads {:.1f} MB of weights and\n", ceiling / 1e9,
               weights / 1e6);
    for (const DecodeScore& s : measured.value())
      fmt::print(
          "  {:>8.1f} MB of cache, {:<22}{:>9.1f} tokens/s{:>8}{:>6.0f} % of the read rate\n",
          static_cast<double>(s.kv_bytes) / 1e6, s.format, median(s.rates),
          s.ratios.empty() ? "" : fmt::format("{:.2f}x", median(s.ratios)), 100 * share(s));
    return kOk;
  }
  Json rows = Json::array();
  for (const DecodeScore& s : measured.value()) {
    const auto [low, high] = std::minmax_element(s.rates.begin(), s.rates.end());
    Json row{{"bench", o.what},
             {"tokens_per_second", median(s.rates)},
             {"min", *low},
             {"max", *high},
             {"repeat", s.rates.size()},
             {"threads", r.threads()},
             {"kv_format", s.format},
             {"isa", machine(r)},
             {"activations", o.model.activations},
             {"depth", o.depth},
             {"batch", o.batch},
             {"n", o.count},
             {"kv_bytes_per_step", s.kv_bytes},
             {"weight_bytes_per_step", r.executor().weights().bytes}};
    if (on_cpu) row["read_bytes_per_second"] = ceiling;
    if (on_cpu) row["bandwidth_share"] = share(s);
    if (!s.ratios.empty()) row["of_first"] = median(s.ratios);
    rows.push_back(std::move(row));
  }
  print_json(rows.size() == 1 ? rows[0] : Json{{"bench", o.what}, {"formats", rows}});
  return kOk;
}

// Seconds of one thread that encoding a token takes, in all lanes: the fastest of a few blocks.
double sealing_seconds(Runtime& r) {
  const Geometry& g = r.geometry();
  const EncodedKernels& kernels = encoded_kernels(r.isa());
  const std::uint32_t tokens = g.tokens_per_block, dim = r.config().head_dim;
  std::vector<std::uint16_t> rows(std::size_t{tokens} * dim);
  Random random(5);
  for (std::uint16_t& x : rows) x = static_cast<std::uint16_t>(0x3000 + random.below(0x1000));
  std::vector<std::byte> space(std::size_t{tokens} * dim * 4 + 64);
  std::byte* page = space.data() + (64 - reinterpret_cast<std::uintptr_t>(space.data()) % 64) % 64;
  double best = 1e9;
  for (int i = 0; i < 16; ++i) {
    const Stopwatch watch;
    for (std::uint32_t layer = 0; layer < r.config().layers; ++layer)
      for (std::uint32_t head = 0; head < r.config().kv_heads; ++head)
        for (const Side side : {Side::keys, Side::values})
          if (g.groups[g.places[layer].group].sealed())
            kernels.seal(r.executor().page_work()->sealed_part(g, layer, head, side, 0),
                         reinterpret_cast<const std::byte*>(rows.data()), page);
    best = std::min(best, watch.seconds());
  }
  return best / tokens;
}

int run_prefill(const BenchOptions& o, Runtime& r) {
  const auto rates = bench_prefill(r, o);
  if (!rates.ok()) return fail(rates.error());
  const double rate = median(rates.value());
  const bool seals = r.executor().traits().device == DeviceKind::cpu && !r.geometry().exact();
  const double share = seals ? sealing_seconds(r) * rate / r.threads() : 0;
  const auto [low, high] = std::minmax_element(rates.value().begin(), rates.value().end());
  if (!o.json)
    fmt::print(
        "prefill {} tokens: {:.1f} tokens/s (median of {}, {:.1f} to {:.1f}; {} threads, {})\n",
        o.prompt, rate, rates.value().size(), *low, *high, r.threads(), machine(r));
  if (!o.json && seals) fmt::print("  encoding is {:.2f} % of it\n", 100 * share);
  if (o.json)
    print_json({{"bench", o.what},
                {"tokens_per_second", rate},
                {"min", *low},
                {"max", *high},
                {"repeat", rates.value().size()},
                {"threads", r.threads()},
                {"kv_format", r.kv_format()},
                {"isa", machine(r)},
                {"activations", o.model.activations},
                {"sealing_share", share},
                {"prompt", o.prompt}});
  return kOk;
}

int run_bench(BenchOptions& o) {
  if (o.what == "batch") {
    if (o.batch == 1) o.batch = 8;
    if (o.depth == 128) o.depth = 256;
  }
  // --kv-format a,b,c: the runtime is opened with the first, the others are compared with it.
  std::vector<std::string> others = CLI::detail::split(o.model.kv_format, ',');
  o.model.kv_format = others[0];
  others.erase(others.begin());
  if (o.adapters > 0 && (o.what == "prefill" || !others.empty() || o.model.device != "cpu"))
    return fail(kUsage, "--adapters goes with decode and batch, one --kv-format, and a CPU");
  if (!others.empty() && o.what == "prefill") return fail(kUsage, "prefill takes one --kv-format");
  auto runtime = open_runtime(o.model);
  if (!runtime.ok()) return fail(runtime.error());
  Runtime& r = *runtime.value();
  const std::uint64_t longest =
      o.what == "prefill" ? o.prompt : std::uint64_t{o.depth} + o.count + 1;
  if (longest > r.context() || o.prompt < 2 || o.depth < 2 || o.count == 0 || o.batch == 0 ||
      o.repeat == 0)
    return fail(kUsage,
                fmt::format("{} tokens do not fit the context of {}", longest, r.context()));
  if (o.what == "prefill") return run_prefill(o, r);
  std::vector<StoragePolicy> ways{r.storage()};
  for (const std::string& name : others) {
    const auto format = find_format(name);
    if (!format.ok()) return fail(kUsage, "--kv-format: " + format.error().message);
    if (const Status ok = r.check_storage(format.value()); !ok.ok()) return fail(ok.error());
    ways.emplace_back(format.value());
  }
  return run_decode(o, r, std::move(ways));
}

std::function<int()> declare_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  app.add_option("WHAT", o->what, "prefill, decode or batch")
      ->required()
      ->check(CLI::IsMember({"prefill", "decode", "batch"}));
  add_model_options(app, o->model);
  app.add_option("--prompt", o->prompt, "tokens to read (512)");
  app.add_option("--depth", o->depth, "tokens before the measured ones (128)");
  app.add_option("-n", o->count, "tokens to make per sequence (32)");
  app.add_option("--batch", o->batch, "sequences side by side (1)")->check(CLI::Range(1, 512));
  app.add_option("--adapters", o->adapters, "compare with so many random adapters beside it (0)")
      ->check(CLI::Range(1, 64))
      ->group(kRare);
  app.add_option("--adapter-rank", o->adapter_rank, "their rank (16)")
      ->check(CLI::Range(1, 1024))
      ->group(kRare);
  app.add_option("--adapter-modules", o->adapter_modules, "their linear layers: all, or qv (all)")
      ->check(CLI::IsMember({"all", "qv"}))
      ->group(kRare);
  app.add_option("--repeat", o->repeat, "measurements; the median counts (3)");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_bench(*o); };
}

}  // namespace

extern const Command kBench = {
    "bench", "measure prefill and decode speed",
    "examples:\n"
    "  quire bench prefill model.gguf --prompt 2048\n"
    "  quire bench decode model.gguf --depth 7000 -n 32 --kv-format f16 --json\n"
    "  quire bench decode --depth 7000 --kv-format f16,int8,hadamard-int4      side by side\n"
    "  quire bench batch model.gguf --batch 32 --depth 256\n"
    "  quire bench serve --help                    servers under load\n"
    "  quire bench kv                              the cache alone\n"
    "  quire bench retain                          a part of a long prompt, against all of it",
    declare_bench};

}  // namespace quire::cli
