// replay/what_if.h - a trace through a server in virtual time, and what came of it.
//
//   TRY(const WhatIf w, what_if(trace, what_if_options(trace, {.evictor = "lru"})));
//   w.hit_share();  w.first_token_s.p99;  w.hit_tokens.disk;
//
// A server that a trace was recorded with is the default for what is not said: memory, evictor, rows
// of a step, and what steps cost.
#pragma once

#include <array>
#include <string>

#include "kv/reason.h"
#include "replay/virtual_worker.h"

namespace quire {

// Percentiles of seconds.
struct Percentiles {
  std::uint64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles(std::vector<double> values);

struct WhatIf {
  std::uint64_t requests = 0, refused = 0;  // refused: too large, or longer than the context
  std::string why_refused = {};             // one of them
  std::uint64_t prompt_tokens = 0, answer_tokens = 0;  // of those that were answered
  // Partial: begun blocks, of which keys say nothing. They count where as many whole blocks are served
  // as the recorded server had, which then served these tokens, too.
  struct {
    std::uint64_t memory = 0, partial = 0, disk = 0, remote = 0;
    std::uint64_t all() const { return memory + partial + disk + remote; }
  } hit_tokens = {};
  std::uint64_t blocks = 0, hit_blocks = 0;  // whole blocks of prompts, and those served
  std::uint64_t preemptions = 0, steps = 0;
  Percentiles first_token_s = {}, token_s = {},
              queue_s = {};  // token: of each answer, between its tokens
  std::array<std::uint64_t, kReasonCount> evictions{};
  double seconds = 0;  // from the first arrival to the last token
  bool whole = true;   // false: it was stopped

  double hit_share() const {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  }
  // Of all prompt tokens, as a server counts them.
  double hit_rate() const {
    return prompt_tokens == 0
               ? 0
               : static_cast<double>(hit_tokens.all()) / static_cast<double>(prompt_tokens);
  }
};

// Round numbers of an accelerator and a model of 8 billion parameters; nobody measured them.
inline constexpr StepCosts kRoundCosts{.step = 5e-3,
                                       .prompt_token = 2e-5,
                                       .prompt_read = 1e-9,
                                       .answer_token = 5e-5,
                                       .answer_read = 3e-8};

// `change` over what was recorded: fields that are 0 or empty, and costs that are not known, become
// those of the trace. Costs that the trace does not tell either are kRoundCosts.
VirtualWorkerOptions what_if_options(const AskedTrace& trace, VirtualWorkerOptions change);

// A cache that is larger than all that is asked for is made as large as that.
Result<WhatIf> what_if(std::span<const Ask> asks, const VirtualWorkerOptions& options);

// Percentiles in milliseconds; with what was recorded beside it, where something was.
Json what_if_json(const WhatIf& w, const VirtualWorkerOptions& options, const AskedTrace& trace,
                  std::uint64_t block_bytes);

// Bytes of a block of the recorded model in another format; none: the trace does not tell.
Result<std::uint64_t> block_bytes_as(const TracedCache& recorded, const std::string& format,
                                     std::uint32_t block_size);

// Costs of a server whose keys and values are stored in other bytes: reading them takes as long.
StepCosts with_bytes(StepCosts costs, double bytes_ratio);

}  // namespace quire
