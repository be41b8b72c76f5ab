// sim/sim_main.cc - runs the simulators over seeds.
//
//   quire_sim [kv] --seeds A:B --steps N [--verbose]           the cache, N turns per seed
//   quire_sim engine --seed A --steps N [--world-steps N] [--verbose]
//                                                              the engine, N steps in all
#include <fmt/format.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/engine_sim.h"
#include "sim/simulator.h"

namespace {

bool runs_engine = false;

// check_failed aborts; say which seed to run again.
void on_abort(int) {
  std::fflush(stdout);
  if (runs_engine) {
    const quire::EngineSimPlace at = quire::engine_sim_place();
    fmt::print(stderr,
               "simulation failed: world {} step {}; again with engine --seed {} --steps 1\n",
               at.seed, at.step, at.seed);
    std::_Exit(1);
  }
  const quire::SimPlace at = quire::sim_place();
  fmt::print(stderr, "simulation failed: seed {} turn {}; again with --seeds {}:{}\n", at.seed,
             at.turn, at.seed, at.seed + 1);
  std::_Exit(1);
}

int usage() {
  fmt::print(stderr,
             "usage: quire_sim [kv] --seeds FIRST:END --steps TURNS_PER_SEED [--verbose]\n"
             "       quire_sim engine --seed FIRST --steps STEPS [--world-steps STEPS] "
             "[--verbose]\n");
  return 2;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Fewer steps do not see everything.
constexpr std::uint64_t kStepsToSeeAll = 50'000;

int run_engine(int argc, char** argv) {
  runs_engine = true;
  prctl(PR_SET_THP_DISABLE, 1, 0, 0,
        0);  // worlds are small and many: clearing huge pages costs more
  std::uint64_t steps = 100'000;
  quire::EngineSimOptions options;
  for (int i = 2; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (!std::strcmp(argv[i], "--seed") && more)
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    else if (!std::strcmp(argv[i], "--steps") && more)
      steps = std::strtoull(argv[++i], nullptr, 10);
    else if (!std::strcmp(argv[i], "--world-steps") && more)
      options.steps = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    else if (!std::strcmp(argv[i], "--verbose"))
      options.verbose = true;
    else
      return usage();
  }
  quire::EngineSimReport sum;
  const auto start = std::chrono::steady_clock::now();
  for (; sum.steps < steps; ++options.seed) sum.add(quire::simulate_engine(options));
  const double seconds = seconds_since(start);
  fmt::print(
      "{} worlds: {} engine steps with {} rows in {:.1f} s, {:.0f} steps/s; {} requests, {} "
      "compared with {} steps alone\n",
      sum.worlds, sum.steps, sum.rows, seconds, static_cast<double>(sum.steps) / seconds,
      sum.requests, sum.compared, sum.alone_steps);
  const std::uint32_t missing = quire::print_features(sum.features);
  if (missing > 0) fmt::print("{} features were never seen\n", missing);
  return missing > 0 && sum.steps >= kStepsToSeeAll ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGABRT, on_abort);
  std::signal(SIGSEGV, on_abort);
  if (argc > 1 && !std::strcmp(argv[1], "engine")) return run_engine(argc, argv);
  std::uint64_t first = 0, end = 100;
  std::uint32_t steps = 3000;
  bool verbose = false;
  for (int i = argc > 1 && !std::strcmp(argv[1], "kv") ? 2 : 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--seeds") && i + 1 < argc) {
      char* rest = nullptr;
      first = std::strtoull(argv[++i], &rest, 10);
      if (*rest != ':') return usage();
      end = std::strtoull(rest + 1, nullptr, 10);
    } else if (!std::strcmp(argv[i], "--steps") && i + 1 < argc) {
      steps = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    } else if (!std::strcmp(argv[i], "--verbose")) {
      verbose = true;
    } else {
      return usage();
    }
  }
  quire::SimReport sum;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t seed = first; seed < end; ++seed) {
    sum.add(quire::simulate({.seed = seed, .steps = steps}));
    if (verbose) fmt::print("seed {} done\n", seed);
  }
  const double seconds = seconds_since(start);
  fmt::print(
      "{} seeds: {} steps that appended, hit, evicted, forked or moved ({} turns) in {:.1f} s\n"
      "requests {} finished {} cancelled {} preempted {} steps refused {}\n"
      "tokens appended {} hit {} ({} partial hits), waited {}, blocks evicted {} moved {} "
      "deduplicated {}, forks {}\n"
      "rows checked {}, resizes {}, leases {}, snapshots {}, compactions {}, limits changed {}, "
      "visitors {}\n",
      end - first, sum.steps, sum.turns, seconds, sum.requests, sum.finished, sum.cancelled,
      sum.preempted, sum.refused_steps, sum.appended_tokens, sum.hit_tokens, sum.partial_hits,
      sum.waited, sum.evicted_blocks, sum.moves, sum.deduplicated, sum.forks, sum.rows_checked,
      sum.resizes, sum.pins, sum.snapshots, sum.compactions, sum.limits, sum.visits);
}
