#include "server/cache_diagnostics.h"

namespace quire {
namespace {

CacheChange change_in(const Explanation& e) {
  if (e.compare_missing || e.compared_to.empty()) return CacheChange::unknown_request;
  const bool all_there = e.changed_segment.empty();
  if (all_there && e.reused_all) return CacheChange::none;
  // The last token of a prompt is computed in any case.
  if (e.cached_tokens + 1 >= e.prompt_tokens) return CacheChange::none;
  if (e.other_model || e.other_adapter) return CacheChange::model;
  if (e.other_salt) return CacheChange::salt;
  if (all_there) return CacheChange::unavailable;
  if (e.other_tools || e.changed_segment == "tools") return CacheChange::tools;
  return e.other_system || e.changed_segment.starts_with("system") ? CacheChange::system
                                                                   : CacheChange::messages;
}

}  // namespace

CacheDiagnosis diagnose_cache(const Explanation& e) {
  // What requests with different salts have in common is told to neither.
  return {change_in(e), e.missed_tokens, e.other_salt ? 0 : e.shared_prefix_tokens};
}

Json anthropic_diagnostics(const CacheDiagnosis& d) {
  const auto changed = [&](const char* type) -> Json {
    return {
        {"cache_miss_reason", {{"type", type}, {"cache_missed_input_tokens", d.missed_tokens}}}};
  };
  switch (d.change) {
    case CacheChange::none:
      return nullptr;
    case CacheChange::model:
      return changed("model_changed");
    case CacheChange::tools:
      return changed("tools_changed");
    case CacheChange::system:
      return changed("system_changed");
    case CacheChange::messages:
    case CacheChange::compacted:
      return changed("messages_changed");
    case CacheChange::unknown_request:
      return {{"cache_miss_reason", {{"type", "previous_message_not_found"}}}};
    case CacheChange::salt:
    case CacheChange::unavailable:
      return {{"cache_miss_reason", {{"type", "unavailable"}}}};
  }
  return nullptr;
}

Json openai_diagnostics(const CacheDiagnosis& d) {
  const auto changed = [&](const char* reason) -> Json {
    return {{"type", "cache_miss"},
            {"reason", reason},
            {"cache_missed_tokens", d.missed_tokens},
            {"comparison_reusable_tokens", d.reusable_tokens}};
  };
  switch (d.change) {
    case CacheChange::none:
      return {{"type", "cache_hit"}};
    case CacheChange::model:
      return changed("model_changed");
    case CacheChange::salt:
      return changed("prompt_cache_key_changed");
    case CacheChange::tools:
      return changed("tools_changed");
    case CacheChange::system:
    case CacheChange::messages:
      return changed("input_changed");
    case CacheChange::compacted:
      return changed("context_compacted");
    case CacheChange::unknown_request:
      return {{"type", "comparison_response_not_found"}};
    case CacheChange::unavailable:
      return {{"type", "unavailable"}};
  }
  return nullptr;
}

}  // namespace quire
