#include "server/grammar.h"

#include <algorithm>

namespace quire {

AskedGrammar tool_call_grammar(const Asked& asked) {
  Json tools = Json::array();
  for (const Json& tool : asked.tools) {
    const Json& f = tool["function"];
    const auto& allowed = asked.tool_choice.allowed;
    if (!allowed.empty() &&
        std::ranges::find(allowed, f["name"].get<std::string>()) == allowed.end())
      continue;
    tools.push_back({{"name", f["name"]},
                     {"parameters", f.contains("parameters") && f["parameters"].is_object()
                                        ? f["parameters"]
                                        : Json{{"type", "object"}}}});
  }
  return {.kind = AskedGrammar::Kind::tool_calls,
          .schema = {{"tools", std::move(tools)}, {"parallel", asked.parallel_tool_calls}},
          .param = "tool_choice"};
}

}  // namespace quire
