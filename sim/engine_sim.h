// sim/engine_sim.h - the whole engine in a simulation: real engine, scheduler, cache and programs over
// the toy executor, a virtual clock and a seeded source of trouble.
//
// A world has a small cache and a few texts and policies. Requests arrive, often equal and at once;
// they are cancelled, finished by their clients and run out of time; the device is lost, rows are not
// finite, memory fails, cached blocks vanish. Each answer, as far as it was reported, must be that of the
// same request alone on a fresh engine with a large cache. Then trouble stops: everything must finish,
// and the cache must be empty of sequences.
//
//   EngineSimReport r = simulate_engine({.seed = 7});     // aborts on the first thing that is wrong
#pragma once

#include <cstdint>

#include "sim/features.h"

namespace quire {

struct EngineSimOptions {
  std::uint64_t seed = 0;
  std::uint32_t steps = 500;  // of the engine, before everything is finished
  bool verbose = false;
};

struct EngineSimReport {
  std::uint64_t worlds = 0, steps = 0, rows = 0, requests = 0, compared = 0, alone_steps = 0;
  Features features;

  void add(const EngineSimReport& o);
};

EngineSimReport simulate_engine(const EngineSimOptions& options);

// Where the simulation is, for a message when it aborts.
struct EngineSimPlace {
  std::uint64_t seed = 0, step = 0;
};
EngineSimPlace engine_sim_place();

}  // namespace quire
