#include "server/dialect/responses/turn.h"

#include <algorithm>

namespace quire::responses {
namespace {

const Json& field_of(const Json& object, const char* name) {
  static const Json kNothing;
  return object.is_object() && object.contains(name) ? object[name] : kNothing;
}

// The first difference that made the prompt another one.
const char* first_change(const Turn& turn, const Json& was, const Json& now, bool dropped) {
  const Json& before = was["response"];
  if (field_of(before, "model") != field_of(now, "model")) return "model_changed";
  if (field_of(was, "salt") != Json(turn.salt)) return "prompt_cache_key_changed";
  if (field_of(before, "tools") != field_of(now, "tools")) return "tools_changed";
  if (field_of(field_of(before, "reasoning"), "effort") !=
      field_of(field_of(now, "reasoning"), "effort"))
    return "reasoning_effort_changed";
  return dropped ? "context_compacted" : "input_changed";
}

}  // namespace

Json read_stored(const StoredResponse& stored) {
  // More than of a body: it is nested deeper, and a chain has more items.
  JsonLimits limits = kRequestJson;
  limits.depth_max += 16;
  limits.keys_max *= 4;
  auto json = parse_json(stored.json, limits);
  if (!json.ok() || !field_of(json.value(), "items").is_array()) return nullptr;
  const Json& response = field_of(json.value(), "response");
  if (!response.is_object() || !field_of(response, "output").is_array()) return nullptr;
  return std::move(json.value());
}

Json diagnose(const Turn& turn, const Json& response, std::span<const TokenId> prompt,
              std::uint64_t cached, std::uint32_t tokens_per_block, bool dropped) {
  if (turn.comparison == nullptr) return {{"type", "comparison_response_not_found"}};
  const Json was = read_stored(*turn.comparison);
  if (was.is_null() || prompt.empty()) return {{"type", "unavailable"}};
  const std::vector<TokenId>& before = turn.comparison->prompt;
  const std::size_t shared =
      static_cast<std::size_t>(std::ranges::mismatch(before, prompt).in1 - before.begin());
  const std::size_t last = prompt.size() - 1;  // its logits are wanted: it is always computed
  if (cached == last) return {{"type", "cache_hit"}};
  const bool same_salt = field_of(was, "salt") == Json(turn.salt);
  if (same_salt && (shared == before.size() || shared >= last)) {
    const std::size_t whole = std::min(shared, last) / tokens_per_block * tokens_per_block;
    return {{"type", cached >= whole ? "cache_hit" : "unavailable"}};  // it was evicted
  }
  return {{"type", "cache_miss"},
          {"reason", first_change(turn, was, response, dropped)},
          {"cache_missed_tokens", prompt.size() - shared},
          {"comparison_reusable_tokens", shared}};
}

}  // namespace quire::responses
