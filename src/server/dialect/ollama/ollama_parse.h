// server/dialect/ollama/ollama_parse.h - from bodies of /api/chat, /api/generate and /api/embed to a
// GenerationRequest.
#pragma once

#include "server/dialect/dialect.h"

namespace quire::ollama {

ParseRequest parse_chat;
ParseRequest parse_generate;
ParseRequest parse_conversation;  // messages and tools alone
ParseRequest parse_embed;         // of /api/embed, and of /api/embeddings, which is older

// A body without messages, prompt or suffix asks for the model to be loaded, and is answered at once.
bool asks_to_load(const Json& body);

}  // namespace quire::ollama
