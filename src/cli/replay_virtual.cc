#include "cli/replay_virtual.h"

#include <fmt/format.h>

#include "base/file.h"
#include "cli/help.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

// "disk:100GiB", "remote:1TiB:2GiB:500": kind, size, bytes a second, microseconds until the first.
Result<VirtualTier> parse_one_tier(const std::string& text, std::uint64_t block_bytes) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  const auto bad = [&](std::string_view why) {
    return Error{Code::invalid,
                 fmt::format("--tier {}: {}; write disk:SIZE, or remote:SIZE:BYTES_PER_SECOND:US",
                             text, why)};
  };
  VirtualTier tier;
  if (parts[0] != "disk" && parts[0] != "remote") return bad("its kind is not disk or remote");
  if (parts.size() < 2 || parts.size() > 4) return bad("it has no size");
  if (block_bytes == 0) return bad("the trace does not say how large blocks are");
  tier.shared = parts[0] == "remote";
  TRY(const std::uint64_t size, parse_size(parts[1]));
  tier.blocks = size / block_bytes;
  if (tier.blocks == 0) return bad("no block fits");
  std::uint64_t rate = std::uint64_t{1} << 30;
  if (parts.size() > 2) {
    TRY(rate, parse_size(parts[2]));
  }
  tier.blocks_per_s = static_cast<double>(rate) / static_cast<double>(block_bytes);
  if (parts.size() > 3) {
    TRY(const std::uint64_t us, parse_size(parts[3]));
    tier.first_byte_s = static_cast<double>(us) * 1e-6;
  }
  return tier;
}

}  // namespace

bool VirtualCliOptions::asked() const {
  return !tiers.empty() || !costs.empty() || !kv_format.empty() || block_size > 0 ||
         step_tokens > 0 || prompt_tokens > 0 || sequences_max > 0 || speed != 1;
}

void add_cost_options(CLI::App& app, VirtualCliOptions& o) {
  app.add_option("--tier", o.tiers, "disk:SIZE[:BYTES_PER_SECOND[:US]], or remote:...; repeatable")
      ->allow_extra_args(false);
  app.add_option("--costs", o.costs, "what steps take: JSON, or a file of it (as recorded)")
      ->group(kRare);
  app.add_option("--speed", o.speed, "requests arrive this many times as fast (1)")
      ->check(CLI::Range(1e-6, 1e6))
      ->group(kRare);
}

void add_virtual_options(CLI::App& app, VirtualCliOptions& o) {
  add_cost_options(app, o);
  app.add_option("--kv-format", o.kv_format, "what if blocks were stored so (as recorded)");
  app.add_option("--block-size", o.block_size, "tokens per block (as recorded, or 512)");
  app.add_option("--step-tokens", o.step_tokens, "rows of one step (as recorded, or 512)")
      ->group(kRare);
  app.add_option("--prompt-tokens", o.prompt_tokens, "of these, of prompts beside answers")
      ->group(kRare);
  app.add_option("--max-num-seqs", o.sequences_max, "answers that decode together")->group(kRare);
}

Status read_costs(const VirtualCliOptions& o, StepCosts& costs) {
  if (o.costs.empty()) return {};
  std::string text = o.costs;
  if (text.find('{') == std::string::npos) {
    TRY(text, read_file(o.costs));
  }
  TRY(const Json json, parse_json(text));
  TRY(costs, parse_step_costs(json));
  return {};
}

void change_speed(const VirtualCliOptions& o, AskedTrace& trace) {
  for (Ask& a : trace.asks)
    a.arrival =
        static_cast<Nanoseconds>(std::min(static_cast<double>(a.arrival) / o.speed, 4.6e18));
}

Result<VirtualWorkerOptions> virtual_options(const VirtualCliOptions& o, AskedTrace& trace,
                                             VirtualWorkerOptions base,
                                             std::uint64_t& block_bytes) {
  change_speed(o, trace);
  const bool own = trace.recorded.block_size > 0;
  base.block_size = o.block_size > 0 || own ? o.block_size : kMooncakeBlockTokens;
  base.step_tokens = o.step_tokens;
  base.prompt_tokens = o.prompt_tokens;
  base.sequences_max = o.sequences_max;
  TRY_STATUS(read_costs(o, base.costs));
  const TracedCache& r = trace.recorded;
  VirtualWorkerOptions made = what_if_options(trace, std::move(base));
  block_bytes = r.block_bytes;
  const bool other_size = r.block_size > 0 && made.block_size != r.block_size;
  if (!o.kv_format.empty() || other_size) {
    TRY(block_bytes,
        block_bytes_as(r, o.kv_format.empty() ? r.format : o.kv_format, made.block_size));
    const double ratio = static_cast<double>(block_bytes) / made.block_size /
                         (static_cast<double>(r.block_bytes) / r.block_size);
    made.costs = with_bytes(made.costs, ratio);
    if (made.capacity_blocks == r.capacity_blocks)
      made.capacity_blocks = r.cache_bytes / block_bytes;
  }
  TRY(made.tiers, parse_tiers(o, block_bytes));
  return made;
}

Result<std::vector<VirtualTier>> parse_tiers(const VirtualCliOptions& o,
                                             std::uint64_t block_bytes) {
  std::vector<VirtualTier> all;
  for (const std::string& text : o.tiers) {
    TRY(all.emplace_back(), parse_one_tier(text, block_bytes));
  }
  return all;
}

std::string what_if_heading() {
  return fmt::format("{:<12}{:>10}{:>8}{:>8}{:>7}{:>8}  {:>26}  {:>22}{:>10}  {}\n", "evictor",
                     "blocks", "hit", "memory", "disk", "remote", "first token ms p50/p90/p99",
                     "token ms p50/p90/p99", "preempted", "evicted");
}

std::string what_if_line(const WhatIf& w, const VirtualWorkerOptions& options) {
  const auto share = [&](std::uint64_t tokens) {
    return w.prompt_tokens == 0
               ? 0.0
               : static_cast<double>(tokens) / static_cast<double>(w.prompt_tokens);
  };
  const auto ms = [](const Percentiles& p) {
    return fmt::format("{:.4g} / {:.4g} / {:.4g}", p.p50 * 1e3, p.p90 * 1e3, p.p99 * 1e3);
  };
  std::string evicted;  // "capacity 120, expired 3"
  for (std::size_t i = 0; i < kReasonCount; ++i) {
    if (w.evictions[i] == 0) continue;
    std::string_view why = reason_name(static_cast<Reason>(i));
    if (why.starts_with("evicted_")) why.remove_prefix(8);
    evicted += fmt::format("{}{} {}", evicted.empty() ? "" : ", ", why, w.evictions[i]);
  }
  return fmt::format("{:<12}{:>10}{:>8.4f}{:>8.3f}{:>7.3f}{:>8.3f}  {:>26}  {:>22}{:>10}  {}\n",
                     options.evictor, options.capacity_blocks, w.hit_rate(),
                     share(w.hit_tokens.memory + w.hit_tokens.partial), share(w.hit_tokens.disk),
                     share(w.hit_tokens.remote), ms(w.first_token_s), ms(w.token_s), w.preemptions,
                     evicted.empty() ? "-" : evicted);
}

}  // namespace quire::cli
