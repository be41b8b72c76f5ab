// engine/chat.h - a conversation as token ids, through the model's own template.
//
// Only the template's own text may yield control tokens: what people and tools wrote is always
// split as text.
#pragma once

#include <vector>

#include "base/json.h"
#include "engine/runtime.h"

namespace quire {

struct ChatOptions {
  bool add_generation_prompt = true;
  Json tools = nullptr;      // as the OpenAI API has them
  Json variables = nullptr;  // further template variables
};

Result<std::string> render_chat_text(const Runtime& runtime, const Json& messages,
                                     const ChatOptions& options);
Result<std::vector<TokenId>> render_chat(const Runtime& runtime, const Json& messages,
                                         const ChatOptions& options);

}  // namespace quire
