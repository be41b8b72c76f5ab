// engine/cache_trace.h - writes what the cache saw to a file, for `quire replay`: no text, no tokens.
//
// A thread of its own asks the engine for news between two steps (the cache's journal, and what the
// log knows of each request), formats it and writes it. The engine only copies. The file has a
// bound; what comes after it is not written. docs/replay.md describes the format.
//
//   TRY(auto trace, CacheTrace::start(*service, {.path = "trace.jsonl", .bytes_max = 1 << 30}));
//   trace.reset();                 // before the service stops
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "engine/service.h"

namespace quire {

struct CacheTraceOptions {
  std::string path = {};
  std::uint64_t bytes_max = std::uint64_t{1} << 30;
  std::string evictor = {};  // of the cache, for the first line
};

class CacheTrace {
 public:
  static Result<std::unique_ptr<CacheTrace>> start(Service& service, CacheTraceOptions options);
  ~CacheTrace();  // writes what is left

 private:
  struct State;
  explicit CacheTrace(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire
