// sim/sim_main.cc - runs the simulator over a range of seeds:  quire_sim --seeds A:B --steps N
// [--verbose]
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/simulator.h"

namespace {

// check_failed aborts; say which seed to run again.
void on_abort(int) {
  const quire::SimPlace at = quire::sim_place();
  fmt::print(stderr, "simulation failed: seed {} turn {}; again with --seeds {}:{}\n", at.seed,
             at.turn, at.seed, at.seed + 1);
  std::_Exit(1);
}

int usage() {
  fmt::print(stderr, "usage: quire_sim --seeds FIRST:END --steps TURNS_PER_SEED [--verbose]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t first = 0, end = 100;
  std::uint32_t steps = 3000;
  bool verbose = false;
  for (int i = 1; i < argc; ++i) {
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
  std::signal(SIGABRT, on_abort);
  std::signal(SIGSEGV, on_abort);
  quire::SimReport sum;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t seed = first; seed < end; ++seed) {
    sum.add(quire::simulate({.seed = seed, .steps = steps}));
    if (verbose) fmt::print("seed {} done\n", seed);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
