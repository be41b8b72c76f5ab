// cli/bench_kv.cc - `quire bench kv`: what the cache's bookkeeping costs, a million blocks cached.
//
// The benchmarks are those beside the code (kv/*_bench.cc, Google Benchmark), linked into the
// program; this file runs them and names the figures that have a goal.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <sstream>

#include "cli/command.h"
#include "cli/help.h"

namespace quire::cli {
namespace {

struct Goal {
  std::string_view key, benchmark, what, unit;
  double goal;
  bool at_least;
};
constexpr Goal kGoals[] = {
    {"match_us", "match_100k_tokens/together", "match a prompt of 100,000 tokens", "us", 100,
     false},
    {"match_scattered_us", "match_100k_tokens/scattered", "the same, its blocks scattered", "us",
     100, false},
    {"take_release_ns", "take_release", "take and release a block", "ns", 50, false},
    {"evict_ns", "evict_all/cost", "evict a block (the default policy)", "ns", 200, false},
    {"keys_mb_per_s", "key_chain/32", "keys of token ids", "MB/s", 300, true},
};

// CPU seconds of one operation.
double seconds(const benchmark::BenchmarkReporter::Run& run) {
  const auto each = run.counters.find("per_eviction");  // a million of them in one iteration
  return each != run.counters.end()
             ? each->second.value
             : run.cpu_accumulated_time / static_cast<double>(run.iterations);
}

double figure(const Goal& goal, const benchmark::BenchmarkReporter::Run& run) {
  if (goal.at_least) return run.counters.at("bytes_per_second").value / 1e6;
  return seconds(run) * (goal.unit == "us" ? 1e6 : 1e9);
}

class Collector final : public benchmark::BenchmarkReporter {
 public:
  explicit Collector(bool say) : say_(say) {}
  bool ReportContext(const Context&) override {
    if (say_) fmt::print("CPU time of one operation, 1,000,000 blocks cached\n");
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const std::string name =
          run.run_name.function_name + (run.run_name.args.empty() ? "" : "/" + run.run_name.args);
      Json row{{"name", name}, {"iterations", run.iterations}, {"cpu_ns", seconds(run) * 1e9}};
      for (const auto& [key, counter] : run.counters) row[key] = counter.value;
      rows.push_back(row);
      for (const Goal& goal : kGoals)
        if (goal.benchmark == name) figures[std::string(goal.key)] = figure(goal, run);
      if (say_) fmt::print("  {:<34} {:>14.1f} ns\n", name, row["cpu_ns"].get<double>());
    }
  }

  Json rows = Json::array(), figures = Json::object();

 private:
  const bool say_;
};

struct BenchKvOptions {
  std::string filter = "all";
  bool json = false;
};

int run_bench_kv(const BenchKvOptions& o) {
  benchmark::SetDefaultTimeUnit(benchmark::kNanosecond);
  Collector collector(!o.json);
  std::ostringstream unsaid;  // the error below says it
  collector.SetErrorStream(&unsaid);
  if (benchmark::RunSpecifiedBenchmarks(&collector, o.filter) == 0)
    return fail(kUsage, "no benchmark is called '" + o.filter + "'",
                "quire bench kv runs them all and prints their names");
  if (o.json) {
    Json out = collector.figures;
    out["cached_blocks"] = 1'000'000;
    out["benchmarks"] = collector.rows;
    print_json(out);
    return kOk;
  }
  fmt::print("\n");
  for (const Goal& goal : kGoals) {
    const auto found = collector.figures.find(std::string(goal.key));
    if (found == collector.figures.end()) continue;
    fmt::print("{:<36} {:>8.1f} {:<4}  goal {} {:.0f}\n", goal.what, found->get<double>(),
               goal.unit, goal.at_least ? ">=" : "< ", goal.goal);
  }
  return kOk;
}

std::function<int()> declare_bench_kv(CLI::App& app) {
  auto o = std::make_shared<BenchKvOptions>();
  app.add_option("--filter", o->filter, "only benchmarks whose name matches this expression");
  app.add_flag("--json", o->json, "print one JSON object");
  return [o] { return run_bench_kv(*o); };
}

}  // namespace

extern const Command kBenchKv = {"bench kv",
                                 "measure the cache's bookkeeping, a million blocks cached",
                                 "examples:\n"
                                 "  quire bench kv\n"
                                 "  quire bench kv --filter evict_all --json",
                                 declare_bench_kv};

}  // namespace quire::cli
