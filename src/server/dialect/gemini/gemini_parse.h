// server/dialect/gemini/gemini_parse.h - from the body of generateContent to a GenerationRequest.
//
// Names are taken in camelCase and in snake_case. The model is in the path, so a body needs none.
#pragma once

#include "server/dialect/dialect.h"

namespace quire::gemini {

ParseRequest parse_generate;
ParseRequest parse_conversation;  // contents, system instruction and tools alone

// Of embedContent and batchEmbedContents. The body of the first is one of the second's `requests`.
ParseRequest parse_embed, parse_batch_embed;

// {"generateContentRequest": {...}} or the fields themselves, as countTokens takes them.
const Json& counted_request(const Json& body);

// The body that asks the same without its cachedContent: the contents of `cached` come first, and
// its instruction and tools count. An error where the body has some of its own.
std::optional<ApiError> without_cache(Json& body, const Json& cached);

// "models/m" and "m" are the same model.
std::string model_name(std::string_view name);

}  // namespace quire::gemini
