#include "base/json_problem.h"

#include <algorithm>
#include <string_view>

namespace quire {

// The library writes "[json.exception.parse_error.101] parse error at line 1, column 3: syntax
// error while parsing value - unexpected end of input; expected '}'".
std::string json_problem(const nlohmann::json::exception& exception) {
  std::string_view text = exception.what();
  const auto cut = [&](std::string_view begin) {
    if (text.starts_with(begin)) text.remove_prefix(begin.size());
  };
  if (text.starts_with('[')) text.remove_prefix(std::min(text.find("] ") + 2, text.size()));
  cut("parse error");
  std::string where;
  if (text.starts_with(" at ")) {
    const std::size_t end = std::min(text.find(": "), text.size());
    where = text.substr(0, end);
    text.remove_prefix(std::min(end + 2, text.size()));
  }
  cut(": ");
  cut("syntax error while parsing ");
  if (const std::size_t dash = text.find(" - "); dash < 40) text.remove_prefix(dash + 3);
  return where + ": " + std::string(text);
}

}  // namespace quire
