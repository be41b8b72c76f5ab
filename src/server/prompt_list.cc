#include "server/prompt_list.h"

#include <fmt/core.h>

namespace quire {
namespace {

constexpr std::size_t kPromptsMax = 1024;

bool is_token(const Json& t, std::uint32_t vocabulary) {
  return t.is_number_unsigned() && t.get<std::uint64_t>() < vocabulary;
}

}  // namespace

std::optional<ApiError> parse_prompts(const Json& prompt, std::uint32_t vocabulary,
                                      GenerationRequest& asked) {
  const auto tokens_of = [&](const Json& list) -> std::optional<PromptInput> {
    PromptInput p{.is_tokens = true};
    p.tokens.reserve(list.size());
    for (const Json& t : list) {
      if (!is_token(t, vocabulary)) return std::nullopt;
      p.tokens.push_back(t.get<TokenId>());
    }
    return p;
  };
  if (prompt.is_string()) {
    asked.prompts.push_back({.text = prompt.get<std::string>()});
    return std::nullopt;
  }
  if (!prompt.is_array() || prompt.empty())
    return bad_value("prompt", "must be a string, a list of strings, tokens, or lists of tokens");
  if (prompt.front().is_number()) {
    auto p = tokens_of(prompt);
    if (!p) return bad_value("prompt", "must hold tokens of this model only");
    asked.prompts.push_back(std::move(*p));
    return std::nullopt;
  }
  if (prompt.size() > kPromptsMax)
    return bad_value("prompt", fmt::format("must hold at most {} prompts", kPromptsMax));
  for (const Json& one : prompt) {
    if (prompt.front().is_string() && one.is_string()) {
      asked.prompts.push_back({.text = one.get<std::string>()});
    } else if (prompt.front().is_array() && one.is_array() && !one.empty()) {
      auto p = tokens_of(one);
      if (!p) return bad_value("prompt", "must hold tokens of this model only");
      asked.prompts.push_back(std::move(*p));
    } else {
      return bad_value("prompt", "must not mix strings, tokens and empty lists");
    }
  }
  return std::nullopt;
}

}  // namespace quire
