// server/answer_format/python_calls.h - calls written as Python: f(a=1, b="x", c=[True, None]).
#pragma once

#include <string_view>
#include <vector>

#include "server/answer_format/block_calls.h"

namespace quire {

// One call or several, parted by commas, semicolons or lines, perhaps in brackets. All arguments have
// names, and values are literals. False: it is something else.
bool parse_python_calls(std::string_view text, std::vector<ReadCall>& calls);

}  // namespace quire
