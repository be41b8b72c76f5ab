#include "server/explain_json.h"

#include <fmt/core.h>

namespace quire {
namespace {

std::string alternative_text(const Explanation::Alternative& a) {
  using Kind = Explanation::Alternative::Kind;
  switch (a.kind) {
    case Kind::move_text:
      return fmt::format("move the changing text after token {}", a.token);
    case Kind::same_salt:
      return "send the same salt";
    case Kind::same_format:
      return "ask for the same KV format";
    case Kind::pin:
      return fmt::format("pin the first {} tokens", a.token);
  }
  return {};
}

}  // namespace

Json explanation_json(const Explanation& e, const Tokenizer& tokenizer, bool text) {
  Json detail{{"at_token", e.at_token},
              {"block", e.block},
              {"segment", e.segment},
              {"compared_to", e.compared_to.empty() ? Json() : Json(e.compared_to)},
              {"shared_prefix_tokens", e.shared_prefix_tokens}};
  if (text) {
    detail["was"] = tokenizer.decode(e.was);
    detail["now"] = tokenizer.decode(e.now);
  }
  Json segments = Json::array(), alternatives = Json::array();
  for (const SegmentHit& s : e.segments)
    segments.push_back(
        {{"name", s.name}, {"start", s.begin}, {"end", s.end}, {"cached", s.cached}});
  for (const Explanation::Alternative& a : e.alternatives)
    alternatives.push_back({{"if", alternative_text(a)}, {"would_cache", a.would_cache}});
  return {{"outcome", outcome_name(e.outcome)},
          {"prompt_tokens", e.prompt_tokens},
          {"cached_tokens", e.cached_tokens},
          {"missed_tokens", e.missed_tokens},
          {"reason", reason_name(e.reason)},
          {"at_token", e.at_token},
          {"detail", std::move(detail)},
          {"segments", std::move(segments)},
          {"alternatives", std::move(alternatives)},
          {"cost", {{"prefill_ms", e.prefill_ms}, {"avoidable_ms", e.avoidable_ms}}}};
}

}  // namespace quire
