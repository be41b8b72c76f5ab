#include "server/kv_report.h"

#include <algorithm>

namespace quire {
namespace {

Json format_json(const StoragePolicy& s) {
  if (!s.by_layer.empty()) return s.name();
  Json format{{"k", s.format->keys->name}, {"v", s.format->values->name}};
  if (s.recent_exact > 0) format["recent_exact"] = s.recent_exact;
  if (s.sinks > 0) format["sinks"] = s.sinks;
  if (!s.skip_layers.empty()) format["skip_layers"] = s.skip_layers;
  return format;
}

}  // namespace

double hidden_share(std::uint64_t bytes, std::uint64_t hidden) {
  return bytes > 0 ? static_cast<double>(hidden) / static_cast<double>(bytes) : 0;
}

Json kv_report(const GenerationRequest& request, const Usage& u,
               std::span<const Done* const> prompts, const Runtime& runtime) {
  const KvRequest& asked = request.kv;
  Done sum;
  for (const Done* prompt : prompts) {
    const Done& d = *prompt;
    sum.computed_tokens += d.computed_tokens;
    sum.written_tokens += d.written_tokens;
    sum.approximate_tokens += d.approximate_tokens;
    sum.converted |= d.converted;
    sum.kv_bytes += d.kv_bytes;
    sum.preemptions += d.preemptions;
    sum.generated_tokens += d.generated_tokens;
    sum.cold_bytes += d.cold_bytes;
    sum.cold_hidden_bytes += d.cold_hidden_bytes;
    sum.cold_blocks += d.cold_blocks;
    sum.lost_blocks += d.lost_blocks;
    sum.saved_prefill_seconds += d.saved_prefill_seconds;
  }
  const Done& first = *prompts.front();
  const StoragePolicy& storage = asked.policy.storage ? *asked.policy.storage : runtime.storage();
  Json kv{{"session", asked.session.empty() ? Json() : Json(asked.session)},
          {"node", first.node == BlockKey{} ? Json() : Json(first.node.hex())},
          {"prompt_tokens", u.prompt},
          {"cached_tokens", u.cached},
          {"cached_by_tier", cached_by_tier(u)},
          {"computed_tokens", sum.computed_tokens},
          {"written_tokens", sum.written_tokens},
          {"format", format_json(storage)},
          {"bytes", sum.kv_bytes},
          {"lossy", storage.lossy() || storage.window > 0 || asked.policy.retain ||
                        asked.policy.select || asked.policy.blend ||
                        storage.prefill.way != SparsePrefill::Way::none},
          {"preemptions", sum.preemptions}};
  if (asked.policy.retain) {
    std::uint64_t whole = 0;
    for (const Done* d : prompts) whole += d->kv_bytes_whole;
    kv["budget"] = {{"policy", asked.policy.retain->text()}, {"bytes_whole", whole}};
  }
  if (asked.policy.blend) kv["approximate_tokens"] = sum.approximate_tokens;
  // The answer depends on what was cached: it may be another one next time.
  if (asked.policy.blend || asked.policy.convert)
    kv["approximate"] = sum.converted || sum.approximate_tokens > 0;
  if (asked.policy.select) {
    std::uint64_t read = 0, readable = 0;
    for (const Done* d : prompts) {
      read += d->kv_bytes_read;
      readable += d->kv_bytes_readable;
    }
    kv["select"] = {
        {"policy", asked.policy.select->text()}, {"bytes_read", read}, {"bytes_whole", readable}};
  }
  if (sum.cold_bytes > 0 || sum.cold_blocks > 0) {
    const double tokens = std::max(
        1.0, static_cast<double>(sum.computed_tokens) + static_cast<double>(sum.generated_tokens));
    kv["resident"] = {{"cold_blocks", sum.cold_blocks},
                      {"bytes_read", sum.cold_bytes},
                      {"bytes_read_per_token", static_cast<double>(sum.cold_bytes) / tokens},
                      {"hidden", hidden_share(sum.cold_bytes, sum.cold_hidden_bytes)},
                      {"lost_blocks", sum.lost_blocks}};
  }
  if (asked.report_seed) kv["seed"] = request.sampling.seed;
  if (asked.report_blocks)
    kv["blocks"] = {{"size", runtime.geometry().tokens_per_block},
                    {"cached", u.cached / runtime.geometry().tokens_per_block}};
  if (asked.report_timing)
    kv["timing"] = {{"queue_ms", 1e3 * first.queue_seconds},
                    {"load_ms", 1e3 * first.load_seconds},
                    {"prefill_ms", 1e3 * first.prefill_seconds},
                    {"ttft_ms", 1e3 * first.first_token_seconds},
                    {"decode_ms", 1e3 * first.decode_seconds},
                    {"saved_prefill_ms_est", 1e3 * sum.saved_prefill_seconds}};
  for (const LeaseId id : first.leases)
    if (id != LeaseId{})
      kv["leases"].push_back("pin_" + std::to_string(static_cast<std::uint64_t>(id)));
  if (!first.lease_problem.empty()) kv["lease_problem"] = first.lease_problem;
  return kv;
}

}  // namespace quire
