// server/prompt.h - turns a GenerationRequest into prompts of token ids with named ranges, and into
// one engine Request per prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/runtime.h"
#include "server/api_error.h"
#include "server/generation_request.h"

namespace quire {

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<PromptSegment> segments;
  std::optional<std::uint32_t> breakpoint;  // tokens before the last explicit cache breakpoint
};

// "prompt" in its four forms: a text, a list of texts, tokens, or lists of tokens.
std::optional<ApiError> parse_prompts(const Json& prompt, std::uint32_t vocabulary,
                                      GenerationRequest& asked);

// Runs templates and tokenizers: not for the I/O or the engine thread when prompts are long.
std::optional<ApiError> make_prompts(const GenerationRequest& asked, const Runtime& runtime,
                                     std::vector<Prompt>& out);
// The text of a conversation, as /apply-template shows it.
std::optional<ApiError> render_text(const GenerationRequest& asked, const Runtime& runtime,
                                    std::string& out);

Request make_request(const GenerationRequest& asked, const Prompt& prompt, const Runtime& runtime,
                     std::string id);

}  // namespace quire
