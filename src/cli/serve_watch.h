// cli/serve_watch.h - what `quire serve` does while it serves: signals, and the end. For one Server, or a
// ModelHouse.
#pragma once

#include <fmt/core.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "cli/command.h"
#include "cli/hints.h"
#include "engine/cache_trace.h"

namespace quire::cli {

// Signals are taken by sigtimedwait alone, so that no handler runs on the engine's thread.
inline sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set, s);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Every connection needs a file descriptor, so the limit is raised as far as this user may.
inline void allow_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Memory of large requests goes back to the system when they end, instead of staying with the
// thread that worked on them.
inline void return_memory() {
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  mallopt(M_ARENA_MAX, 2);
}

inline void prepare_process(std::uint32_t threads) {
  const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (const std::string& hint : machine_hints(threads, cores))
    fmt::print(stderr, "hint: {}\n", hint);
  allow_descriptors();
  return_memory();
}

// The next signal, or 0 when none came in time.
inline int next_signal(const sigset_t& set, std::chrono::milliseconds limit) {
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &time);
  return signal > 0 ? signal : 0;
}

// A grammar that is being compiled cannot be interrupted. If there is one, the process just ends.
template <class Served>
int stop_now(Served& server, std::unique_ptr<CacheTrace> trace, int code) {
  trace.reset();  // while the engine can still be asked
  server.stop();
  if (server.quiet_within(std::chrono::milliseconds(500))) return code;
  std::fflush(nullptr);
  std::_Exit(code);
}

// Runs until a signal asks it to end. Running requests may then finish.
template <class Served>
int watch(Served& server, std::unique_ptr<CacheTrace> trace, const sigset_t& signals,
          double drain_seconds) {
  std::uint64_t trimmed_at = 0;  // requests seen when memory was last given back
  while (true) {
    const int signal = next_signal(signals, std::chrono::seconds(2));
    if (signal == 0) {
      if (const std::uint64_t seen = server.requests_seen(); seen != trimmed_at && server.idle()) {
        malloc_trim(0);  // a crowd of small requests leaves many small holes
        trimmed_at = seen;
      }
      if (const auto news = server.look_at_model_files())
        fmt::print(stderr, "warning: {}\n", *news);
    } else if (signal == SIGHUP) {
      if (const Status s = server.reload(); !s.ok())
        fmt::print(stderr, "warning: {}\n", s.error().message);
    } else if (signal == SIGUSR1) {
      fmt::print(stderr, "{}\n", server.statistics().dump());
    } else {
      break;
    }
  }
  server.drain();
  if (!server.idle())
    fmt::print(stderr, "finishing what is running, for at most {} s; a second signal ends it now\n",
               drain_seconds);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(static_cast<std::int64_t>(drain_seconds * 1000));
  while (!server.idle() && std::chrono::steady_clock::now() < end) {
    const int signal = next_signal(signals, std::chrono::milliseconds(20));
    if (signal == SIGINT || signal == SIGTERM)
      return stop_now(server, std::move(trace), kInterrupted);
  }
  return stop_now(server, std::move(trace), kOk);
}

}  // namespace quire::cli
