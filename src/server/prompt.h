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
#include "text/chat_template.h"

namespace quire {

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<PromptSegment> segments;
  struct Breakpoint {
    std::uint32_t tokens = 0;  // before it
    Nanoseconds ttl = 0;
  };
  std::vector<Breakpoint> breakpoints = {};  // rising
  std::uint32_t scored_from = 0;             // of PromptInput::scored; 0: nothing
  std::string tail = {};                     // of a conversation: the last bytes of its text
};

// The longest text that might fit into the context, four times over; longer ones are refused unread.
std::size_t prompt_bytes_max(const Runtime& runtime);

// A field in the four forms of "prompt": a text, a list of texts, tokens, or lists of tokens. Errors
// name it as asked.prompt_field does.
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
