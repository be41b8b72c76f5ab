// server/prompt_list.h - "prompt" in its four forms: a text, a list of texts, tokens, or lists of tokens.
//
//   if (auto error = parse_prompts(body["prompt"], vocabulary, asked)) return error;
#pragma once

#include <cstdint>
#include <optional>

#include "server/api_error.h"
#include "server/generation_request.h"

namespace quire {

std::optional<ApiError> parse_prompts(const Json& prompt, std::uint32_t vocabulary,
                                      GenerationRequest& asked);

}  // namespace quire
