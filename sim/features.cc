#include "sim/features.h"

#include <fmt/format.h>

#include "kv/retain/policy.h"
#include "sim/asks.h"

namespace quire {
namespace {

// Besides those below: one for each method of retention.
constexpr std::string_view kFeatures[] = {
    // what requests ask for
    "plain", "format f16", "format bf16", "format int8", "format kivi-2", "format hadamard-int4",
    "format int8/hadamard-int4", "format recent_exact", "format sinks", "format window",
    "format skip_layers", "prompt xattention", "prompt vertical-slash", "select quest", "retain",
    "retain cut", "retain every", "retain merge", "retain ada-", "retain critical-",
    "retain with n", "retain in a lossy format", "approximate reuse", "convert", "n", "beams",
    "sampled", "penalties", "logit bias", "logprobs", "prompt_logprobs",
    "prompt_logprobs of a part", "pooling last", "pooling mean", "pooling cls", "mask",
    "stop tokens", "tokens_min", "tokens_max 0", "chunk", "priority", "deadline", "tenant", "salt",
    "no reuse", "write none", "write prompt", "memory only", "ttl", "lease", "pin", "breakpoint",
    "model with windows", "drawn by the executor", "resident",
    // what happened
    "finished", "compared with alone", "equal at once", "equal policy at once", "cached tokens",
    "waited for a prefix", "parked", "recomputed", "resumed", "evicted", "blocks moved",
    "step ahead", "cancelled", "client finished it", "deadline passed", "device lost", "not finite",
    "refused", "too large", "cut to what fits", "cache cleared", "cache resized", "memory failed",
    "snapshots dropped", "clock jumped", "began with a snapshot", "pin checked", "limits changed",
    "over quota", "written to a tier", "loaded from a tier", "load failed", "load too slow",
    "read in vain", "tier down", "gate in time", "gate too late", "sealed notices", "guest's draft",
    "guest's draft rejected", "drafts", "guesses accepted", "guesses rejected", "drafts by lookup",
    "endless", "converted", "blended", "cold blocks", "cold blocks lost"};

}  // namespace

std::uint32_t print_features(const Features& seen) {
  std::uint32_t missing = 0, column = 0;
  const auto row = [&](std::string_view name) {
    const auto at = seen.find(name);
    const std::uint64_t times = at == seen.end() ? 0 : at->second;
    missing += times == 0;
    fmt::print("{:<28}{:>9}{}", name, times, ++column % 3 == 0 ? "\n" : "   ");
  };
  for (const std::string_view name : kFeatures) row(name);
  for (const RetainMethod* m : retain_methods())
    if (m->name != "oracle") row(fmt::format("retain {}", m->name));
  fmt::print("\n");
  return missing;
}

void Asks::count(const Request& r, Features& features) {
  const auto note = [&](bool there, std::string_view name) {
    if (there) ++features[std::string(name)];
  };
  const KvPolicy& kv = r.kv;
  note(!kv.storage && !kv.retain && !kv.select && !kv.blend && !kv.convert, "plain");
  if (const StoragePolicy* s = kv.storage.get()) {
    note(true, fmt::format("format {}", s->format->name));
    note(s->recent_exact > 0, "format recent_exact");
    note(s->sinks > 0, "format sinks");
    note(s->window > 0, "format window");
    note(!s->skip_layers.empty(), "format skip_layers");
    note(s->prefill.way == SparsePrefill::Way::antidiagonals, "prompt xattention");
    note(s->prefill.way == SparsePrefill::Way::vertical_slash, "prompt vertical-slash");
  }
  if (const RetainPolicy* p = kv.retain.get()) {
    note(true, "retain");
    note(true, fmt::format("retain {}", p->method.name));
    note(p->cut > 0, "retain cut");
    note(p->every > 0, "retain every");
    note(p->merger != nullptr, "retain merge");
    note(p->name.find("ada-") != std::string::npos, "retain ada-");
    note(p->name.starts_with("critical-"), "retain critical-");
    note(r.choices > 1, "retain with n");
    note(p->endless() && r.tokens_max > 180, "endless");
    note(kv.storage && kv.storage->lossy(), "retain in a lossy format");
  }
  note(kv.select != nullptr, "select quest");
  note(kv.blend.has_value(), "approximate reuse");
  note(kv.convert, "convert");
  note(r.choices > 1 && r.beams == 0, "n");
  note(r.beams > 0, "beams");
  note(r.sampling.temperature > 0, "sampled");
  note(r.sampling.penalizes(), "penalties");
  note(!r.sampling.logit_bias.empty(), "logit bias");
  note(r.sampling.logprobs > 0, "logprobs");
  note(r.prompt_logprobs >= 0, "prompt_logprobs");
  note(r.prompt_logprobs >= 0 && r.prompt_logprobs_from > 1, "prompt_logprobs of a part");
  note(r.pooling == Pooling::last, "pooling last");
  note(r.pooling == Pooling::mean, "pooling mean");
  note(r.pooling == Pooling::cls, "pooling cls");
  note(r.mask != nullptr, "mask");
  note(!r.stop_tokens.empty(), "stop tokens");
  note(r.tokens_min > 0, "tokens_min");
  note(r.tokens_max == 0, "tokens_max 0");
  note(r.chunk > 0, "chunk");
  note(r.priority != 0, "priority");
  note(r.deadline > 0, "deadline");
  note(!kv.tenant.empty(), "tenant");
  note(!kv.salt.empty(), "salt");
  note(!kv.reuse, "no reuse");
  note(kv.write == KvWrite::none, "write none");
  note(kv.write == KvWrite::prompt, "write prompt");
  note(!kv.disk, "memory only");
  note(kv.ttl > 0, "ttl");
  note(kv.resident > 0, "resident");
  for (const LeaseRequest& lease : kv.leases)
    note(true, !lease.pin ? "lease" : lease.breakpoint && lease.ttl > 0 ? "breakpoint" : "pin");
}

}  // namespace quire
