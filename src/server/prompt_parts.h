// server/prompt_parts.h - where the parts of a conversation lie in its prompt: tools, the system
// prompt, blocks of messages. Segments (for explain) and cache breakpoints come of it.
//
//   RenderedConversation c = ...;                      // what the template made of the messages
//   prompt.tokens = encode_segments(tokenizer, c.parts);
//   name_parts(asked, c, tokenizer, prompt);           // fills segments and breakpoints
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/json.h"
#include "server/generation_request.h"
#include "server/prompt.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire {

struct RenderedConversation {
  Json messages;               // as rendered; tools may have become one
  std::vector<Segment> parts;  // of the prompt
};

// The bytes of the prompt from the first to the last of a message's content.
struct Extent {
  std::size_t begin = 0, end = 0;
  bool shown = false;
};
std::vector<Extent> where_shown(std::size_t messages, std::span<const Segment> parts);

void name_parts(const GenerationRequest& asked, const RenderedConversation& c,
                const Tokenizer& tokenizer, Prompt& prompt);

}  // namespace quire
