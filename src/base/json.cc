#include "base/json.h"

#include "base/json_problem.h"

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
