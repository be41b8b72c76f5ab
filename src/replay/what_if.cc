#include "replay/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/stop.h"

namespace quire {
namespace {

Json percentiles_ms(const Percentiles& p) {
  return {{"mean", p.mean * 1e3}, {"p50", p.p50 * 1e3}, {"p90", p.p90 * 1e3}, {"p99", p.p99 * 1e3}};
}

// Blocks that all of it takes, if nothing is shared.
std::uint64_t blocks_asked(std::span<const Ask> asks, std::uint32_t block_size) {
  std::uint64_t sum = 0;
  for (const Ask& a : asks)
    sum += (std::uint64_t{a.prompt_tokens} + a.answer_tokens) / block_size + 2;
  return sum;
}

}  // namespace

Percentiles percentiles(std::vector<double> values) {
  Percentiles p{.count = values.size()};
  if (values.empty()) return p;
  std::ranges::sort(values);
  for (const double v : values) p.mean += v / static_cast<double>(values.size());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto low = static_cast<std::size_t>(place);
    const double part = place - static_cast<double>(low);
    return part > 0 ? values[low] * (1 - part) + values[low + 1] * part : values[low];
  };
  p.p50 = at(0.5);
  p.p90 = at(0.9);
  p.p99 = at(0.99);
  return p;
}

VirtualWorkerOptions what_if_options(const AskedTrace& trace, VirtualWorkerOptions change) {
  const TracedCache& r = trace.recorded;
  const VirtualWorkerOptions usual;
  const auto fill = [](auto& value, auto recorded, auto otherwise) {
    if (value == 0) value = recorded ? recorded : otherwise;
  };
  fill(change.block_size, r.block_size, usual.block_size);
  fill(change.capacity_blocks, r.capacity_blocks, std::uint64_t{0});
  fill(change.step_tokens, r.step_tokens, usual.step_tokens);
  fill(change.prompt_tokens, r.prompt_tokens, usual.prompt_tokens);
  fill(change.sequences_max, r.sequences_max, usual.sequences_max);
  fill(change.context, r.context, usual.context);
  if (change.evictor.empty()) change.evictor = r.evictor.empty() ? usual.evictor : r.evictor;
  if (!change.costs.known()) change.costs = trace.costs;
  if (!change.costs.known()) change.costs = kRoundCosts;
  return change;
}

Result<WhatIf> what_if(std::span<const Ask> asks, const VirtualWorkerOptions& asked) {
  VirtualWorkerOptions options = asked;
  if (options.block_size > 0)
    options.capacity_blocks =
        std::min(options.capacity_blocks,
                 std::max<std::uint64_t>(blocks_asked(asks, options.block_size), 64));
  TRY(const auto worker, VirtualWorker::open(options));
  std::unordered_map<std::uint64_t, std::uint32_t> recorded;  // tokens that were served, by number
  for (const Ask& a : asks)
    if (a.recorded_hit_tokens % options.block_size > 0) recorded[a.number] = a.recorded_hit_tokens;
  const Nanoseconds start = worker->now();
  const std::vector<VirtualEnd> ends = run_by_the_clock(*worker, asks);
  WhatIf w{.requests = ends.size()};
  std::vector<double> first, token, queue;
  for (const VirtualEnd& e : ends) {
    if (!e.problem.empty()) {
      ++w.refused;
      w.why_refused = e.problem;
      continue;
    }
    const Done& d = e.done;
    w.prompt_tokens += d.prompt_tokens;
    w.answer_tokens += d.generated_tokens;
    w.blocks += d.prompt_tokens / options.block_size;
    w.hit_blocks += d.cached_tokens / options.block_size;
    w.hit_tokens.memory += d.cached_tokens - d.loaded_tokens;
    if (const auto it = recorded.find(e.number);
        it != recorded.end() &&
        it->second / options.block_size == d.cached_tokens / options.block_size)
      w.hit_tokens.partial += it->second % options.block_size;
    w.hit_tokens.disk += d.loaded_tokens - d.remote_tokens;
    w.hit_tokens.remote += d.remote_tokens;
    w.preemptions += d.preemptions;
    queue.push_back(d.queue_seconds);
    if (d.generated_tokens > 0) first.push_back(d.first_token_seconds);
    if (d.generated_tokens > 1) token.push_back(d.decode_seconds / (d.generated_tokens - 1));
  }
  w.first_token_s = percentiles(std::move(first));
  w.token_s = percentiles(std::move(token));
  w.queue_s = percentiles(std::move(queue));
  const ServiceStats& stats = worker->stats();
  w.steps = stats.steps;
  w.evictions = stats.cache.evictions;
  w.seconds = static_cast<double>(worker->now() - start) * 1e-9;
  w.whole = !stop_asked();
  return w;
}

Json what_if_json(const WhatIf& w, const VirtualWorkerOptions& options, const AskedTrace& trace,
                  std::uint64_t block_bytes) {
  Json evictions = Json::object();
  for (std::size_t i = 0; i < kReasonCount; ++i)
    if (w.evictions[i] > 0)
      evictions[std::string(reason_name(static_cast<Reason>(i)))] = w.evictions[i];
  Json json{{"order", "virtual"},
            {"evictor", options.evictor},
            {"capacity_blocks", options.capacity_blocks},
            {"block_size", options.block_size},
            {"cache_bytes", options.capacity_blocks * block_bytes},
            {"requests", w.requests},
            {"refused", w.refused},
            {"prompt_tokens", w.prompt_tokens},
            {"answer_tokens", w.answer_tokens},
            {"blocks", w.blocks},
            {"hit_blocks", w.hit_blocks},
            {"hit_share", w.hit_share()},
            {"hit_rate", w.hit_rate()},
            {"hit_tokens",
             {{"memory", w.hit_tokens.memory},
              {"partial", w.hit_tokens.partial},
              {"disk", w.hit_tokens.disk},
              {"remote", w.hit_tokens.remote}}},
            {"first_token_ms", percentiles_ms(w.first_token_s)},
            {"token_ms", percentiles_ms(w.token_s)},
            {"queue_ms", percentiles_ms(w.queue_s)},
            {"preemptions", w.preemptions},
            {"evictions", evictions},
            {"steps", w.steps},
            {"seconds", w.seconds},
            {"costs", step_costs_json(options.costs)}};
  if (w.refused > 0) json["why_refused"] = w.why_refused;
  if (trace.recorded.block_size == 0) return json;
  std::vector<double> first, token;
  std::uint64_t hit = 0, hit_blocks = 0;
  for (const Ask& a : trace.asks) {
    hit += a.recorded_hit_tokens;
    hit_blocks += a.recorded_hit_tokens / trace.recorded.block_size;
    if (a.recorded_first_token_s > 0) first.push_back(a.recorded_first_token_s);
    if (a.answer_tokens > 1) token.push_back(a.recorded_decode_s / (a.answer_tokens - 1));
  }
  json["recorded"] = {
      {"hit_tokens", hit},
      {"hit_blocks", hit_blocks},
      {"hit_rate", w.prompt_tokens > 0
                       ? static_cast<double>(hit) / static_cast<double>(trace.prompt_tokens())
                       : 0},
      {"first_token_ms", percentiles_ms(percentiles(std::move(first)))},
      {"token_ms", percentiles_ms(percentiles(std::move(token)))}};
  return json;
}

Result<std::uint64_t> block_bytes_as(const TracedCache& recorded, const std::string& format,
                                     std::uint32_t block_size) {
  if (recorded.layers.empty())
    return Error{Code::unsupported,
                 "the trace does not say what layers the model has, so blocks of another format or "
                 "size have no known bytes; give --capacity-blocks instead"};
  TRY(const Format* f, find_format(format));
  const Geometry geometry = build_geometry(recorded.layers, block_size, StoragePolicy(f));
  TRY_STATUS(check_geometry(geometry));
  std::uint64_t bytes = 0;
  for (const LayerGroup& g : geometry.groups)
    if (g.kind != GroupKind::recent) bytes += geometry.block_bytes(g);
  return bytes;
}

StepCosts with_bytes(StepCosts costs, double bytes_ratio) {
  costs.answer_read *= bytes_ratio;
  return costs;
}

}  // namespace quire
