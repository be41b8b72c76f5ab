// server/openai_parse.h - bodies of the OpenAI dialect to Asked, or to an error that names the
// parameter. Pure functions: no socket, no engine.
//
//   Asked asked;
//   if (auto error = parse_chat(body, context, asked)) return error_response(*error);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "server/api_error.h"
#include "server/asked.h"
#include "server/kv_parse.h"

namespace quire {

struct ParseContext {
  std::uint32_t vocabulary = 0;
  bool strict_fields = false;    // unknown fields are errors
  bool parse_special = true;     // raw prompts may spell control tokens (--no-parse-special)
  bool trust_templates = false;  // a chat_template is taken (--trust-request-templates)
  KvRules kv;
  std::string kv_header;  // x-kv-policy
};

std::optional<ApiError> parse_chat(const Json& body, const ParseContext& context, Asked& asked);
std::optional<ApiError> parse_completion(const Json& body, const ParseContext& context,
                                         Asked& asked);
// The messages, tools and template fields alone, as /tokenize, /apply-template and /v1/kv take
// them.
std::optional<ApiError> parse_conversation(const Json& body, const ParseContext& context,
                                           Asked& asked);
// "prompt" in its four forms.
std::optional<ApiError> parse_prompts(const Json& prompt, std::uint32_t vocabulary, Asked& asked);

}  // namespace quire
