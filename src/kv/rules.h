// kv/rules.h - what a policy of a request may be combined with, as a table: read by the engine, which
// refuses, and by `quire kv methods`, which prints it.
//
//   constexpr Rule<RetainPolicy, RetainUse> kRules[] = {{"beam search", "refused", has_beams}, ...};
//   TRY_STATUS(check_rules<RetainPolicy, RetainUse>(kRules, policy, use));
#pragma once

#include <fmt/core.h>

#include <span>
#include <string_view>

#include "base/result.h"

namespace quire {

template <class Policy, class Use>
struct Rule {
  std::string_view with;  // what it is combined with
  std::string_view says;  // how, or why not
  // Null: always legal. Else whether this use is refused.
  bool (*refuses)(const Policy&, const Use&) = nullptr;
};

template <class Policy, class Use>
Status check_rules(std::span<const Rule<Policy, Use>> rules, const Policy& policy, const Use& use) {
  for (const Rule<Policy, Use>& rule : rules)
    if (rule.refuses && rule.refuses(policy, use))
      return Error{Code::unsupported,
                   fmt::format("{} with {}: {}", policy.text(), rule.with, rule.says)};
  return {};
}

}  // namespace quire
