#include "base/json.h"

#include <algorithm>

namespace quire {
namespace {

// The nesting of brackets outside strings, without building anything.
int nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

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

Result<Json> parse_json(std::string_view text, int depth_max) {
  if (nesting(text) > depth_max)
    return Error{Code::invalid, "JSON nested deeper than " + std::to_string(depth_max) + " levels"};
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    return Error{Code::invalid, "not JSON" + json_problem(e)};
  }
}

}  // namespace quire
