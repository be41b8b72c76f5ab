// base/json.h - JSON values (nlohmann, keys in the order written) and a parser that returns a
// Result.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_named.h"
#include "base/result.h"

namespace quire {

// Refuses text nested deeper than `depth_max`, so that hostile input cannot exhaust the stack.
Result<Json> parse_json(std::string_view text, int depth_max = 64);

}  // namespace quire
