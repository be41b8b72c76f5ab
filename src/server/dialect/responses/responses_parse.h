// server/dialect/responses/responses_parse.h - bodies of /v1/responses. The parser looks up
// previous_response_id, comparison_response_id and item references in the dialect's store
// (ParseContext::state).
#pragma once

#include "server/dialect/dialect.h"

namespace quire::responses {

ParseRequest parse_response;
// The same body, to be counted: nothing will be stored.
ParseRequest parse_input;

}  // namespace quire::responses
