// cli/replay_virtual.h - what `quire replay` and `quire plan` say of a server in virtual time, and the
// options that both have.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "replay/what_if.h"

namespace quire::cli {

struct VirtualCliOptions {
  std::vector<std::string> tiers;
  std::string costs, kv_format;
  std::uint32_t block_size = 0, step_tokens = 0, prompt_tokens = 0, sequences_max = 0;
  double speed = 1;

  bool asked() const;  // for something that only a server in virtual time has
};
void add_virtual_options(CLI::App& app, VirtualCliOptions& o);
void add_cost_options(CLI::App& app, VirtualCliOptions& o);  // tiers, costs and speed alone
Status read_costs(const VirtualCliOptions& o, StepCosts& costs);
void change_speed(const VirtualCliOptions& o, AskedTrace& trace);
Result<std::vector<VirtualTier>> parse_tiers(const VirtualCliOptions& o, std::uint64_t block_bytes);

// The trace with its arrivals `speed` times as fast, and the server that was asked for; capacity and
// evictor as in `base`. `block_bytes` becomes the bytes of a block there, 0 if nobody knows.
Result<VirtualWorkerOptions> virtual_options(const VirtualCliOptions& o, AskedTrace& trace,
                                             VirtualWorkerOptions base, std::uint64_t& block_bytes);

std::string what_if_heading();
std::string what_if_line(const WhatIf& w, const VirtualWorkerOptions& options);

}  // namespace quire::cli
