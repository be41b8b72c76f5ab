// engine/chat.h - a conversation as token ids, through the model's own template.
//
// Only the template's own text may yield control tokens: what people and tools wrote is always
// split as text.
#pragma once

#include <span>
#include <vector>

#include "base/json.h"
#include "engine/runtime.h"

namespace quire {

struct ChatOptions {
  bool add_generation_prompt = true;
  Json tools = nullptr;                         // as the OpenAI API has them
  Json variables = nullptr;                     // further template variables
  const ChatTemplate* chat_template = nullptr;  // instead of the model's own
};

// The prompt in pieces: the template's own text and what people and tools wrote.
Result<std::vector<Segment>> render_chat_segments(const Runtime& runtime, const Json& messages,
                                                  const ChatOptions& options);
std::vector<TokenId> encode_segments(const Tokenizer& tokenizer, std::span<const Segment> parts);

Result<std::vector<TokenId>> render_chat(const Runtime& runtime, const Json& messages,
                                         const ChatOptions& options);

}  // namespace quire
