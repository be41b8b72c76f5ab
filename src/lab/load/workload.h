// lab/load/workload.h - what is asked, and when: sessions of turns, made up or read from a recording.
//
// A session is one client's conversation. A turn is sent `think_s` seconds after the previous
// answer has arrived, and its prompt is the whole conversation so far. A lone request is a session
// of one turn. run_load() decides whether sessions begin by the clock (open loop) or as others end
// (closed loop).
//
//   Workload w = make_workload({.kind = "agent", .sessions = 16, .turns = 6, .prefix = 3000});
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lab/load/prompt.h"

namespace quire::load {

struct TurnPlan {
  Part adds;
  std::uint32_t output_tokens = 64;
  double think_s = 0;  // after the answer before it
};

struct SessionPlan {
  double start_s = 0;         // open loop: after the beginning of the run
  std::vector<Part> opening;  // a system prompt, or the parts of a recorded prompt
  std::vector<TurnPlan> turns;
};

struct Workload {
  std::string name;
  std::vector<SessionPlan> sessions;
  std::size_t requests() const;
};

// Measures of a made-up workload, in tokens.
//   random          independent prompts of `input`
//   shared-prefix   `groups` prefixes of `prefix`, each followed by an ending of its own of `input`
//   agent           `sessions` conversations behind one prefix of `prefix`, `turns` turns of `input`
struct WorkloadShape {
  std::string kind = "random";
  std::uint32_t sessions = 32, turns = 1, input = 256, output = 64, prefix = 0, groups = 1;
  double think_s = 0;
  std::uint64_t seed = 1;
};
Result<Workload> make_workload(const WorkloadShape& shape);

// A recording, one JSON object a line. Ours: {"at": seconds, "messages": [...] or "prompt": text or
// "input_tokens": n, "output_tokens": n}. Also the published block traces: {"timestamp": ms,
// "input_length": n, "output_length": n, "hash_ids": [...]}, where an id names 512 tokens and equal
// ids are equal text.
Result<Workload> parse_trace(std::string_view lines, std::string_view name);

// Start times of a Poisson process of `rate` sessions a second (or evenly spaced), by seed.
void start_by_clock(Workload& workload, double rate, bool poisson, std::uint64_t seed);

}  // namespace quire::load
