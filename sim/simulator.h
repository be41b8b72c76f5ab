// sim/simulator.h - the real cache under a toy model and a scheduler stub, from one seed, on a
// virtual clock.
//
// Requests arrive with shared prefixes, wait for each other, are attached, stepped (one or two
// steps in flight), drafted for, forked, truncated, preempted, parked, cancelled, faulted, leased
// and pinned, while memory shrinks, grows and fails. The simulator compares every row that a step
// reads with the value that the tokens before it imply. After every step it balances the ledger and
// compares the index with a flat map. At the end faults stop, and every request must finish.
//
//   SimReport r = simulate({.seed = 7, .steps = 3000});   // aborts at the first error
#pragma once

#include <cstdint>

namespace quire {

struct SimOptions {
  std::uint64_t seed = 0;
  std::uint32_t steps = 3000;
};

struct SimReport {
  std::uint64_t steps = 0;  // that appended, hit, evicted, forked or moved something
  std::uint64_t turns = 0;  // all
  std::uint64_t appended_tokens = 0, hit_tokens = 0, evicted_blocks = 0, forks = 0, moves = 0;
  std::uint64_t requests = 0, finished = 0, cancelled = 0, preempted = 0, refused_steps = 0,
                partial_hits = 0;
  std::uint64_t waited = 0, rows_checked = 0, resizes = 0, pins = 0, snapshots = 0,
                deduplicated = 0, compactions = 0, limits = 0, visits = 0;

  void add(const SimReport& o);
};

SimReport simulate(const SimOptions& options);

// Where the simulation is, for a message when it aborts.
struct SimPlace {
  std::uint64_t seed, turn;
};
SimPlace sim_place();

}  // namespace quire
