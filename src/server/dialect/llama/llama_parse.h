// server/dialect/llama/llama_parse.h - from the body of llama-server's POST /completion to a
// GenerationRequest.
#pragma once

#include "server/dialect/dialect.h"

namespace quire::llama {

ParseRequest parse_completion;

}  // namespace quire::llama
