// server/work_pool.h - threads for what requests need before the engine sees them: parsing,
// templates, tokenizing, grammars.
//
//   WorkPool pool({.threads = 4});
//   pool.run({.whose = "acme", .stop = stop, .work = [] { ... }});
//
// No job holds up the others. The next job is of the client with the fewest jobs running. A job
// that takes longer than `slow_after` goes on at a lower priority, and a new thread takes the
// place of its thread. Only `slow_max` jobs may be slow at once: while others wait for a thread,
// the one that has run longest is asked to stop (base/stop.h). So is a job that has used
// `seconds_max` of processor time.
//
// A job runs even if it was asked to stop before: it checks its Stop first and reports why it ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/stop.h"

namespace quire {

struct WorkPoolOptions {
  std::uint32_t threads = 4, slow_max = 8;
  std::chrono::milliseconds slow_after{50};
  double seconds_max = 5;
};

class WorkPool {
 public:
  struct Job {
    std::string whose;  // a tenant, or an address
    std::shared_ptr<Stop> stop;
    std::function<void()> work;
  };

  explicit WorkPool(WorkPoolOptions options = {});
  ~WorkPool();  // stops all jobs and waits for them
  WorkPool(const WorkPool&) = delete;

  void run(Job job);
  void stop_all();  // what runs and waits, and whatever comes later
  // Whether nothing runs or waits any more; waits at most so long for it.
  bool idle_within(std::chrono::milliseconds limit);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace quire
