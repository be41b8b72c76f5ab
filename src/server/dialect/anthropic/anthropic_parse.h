// server/dialect/anthropic/anthropic_parse.h - bodies of /v1/messages, read by pure functions.
//
//   GenerationRequest asked;
//   if (auto error = anthropic::parse_messages(body, context, asked)) return call->refuse(*error);
#pragma once

#include "server/dialect/dialect.h"

namespace quire::anthropic {

ParseRequest parse_messages;
// The same without max_tokens: to be counted or looked up.
ParseRequest parse_conversation;
// What version 2026-10-21 of the API refuses (--anthropic-strict); null: nothing.
std::optional<ApiError> refused_by_version(const Json& body, std::string_view version);

}  // namespace quire::anthropic
