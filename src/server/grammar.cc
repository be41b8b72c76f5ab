#include "server/grammar.h"

#include <algorithm>

#include "server/tools.h"

namespace quire {

AnswerGrammar tool_call_grammar(const GenerationRequest& asked, std::string_view chat_template) {
  const bool required = asked.tool_choice.kind == ToolChoice::Kind::required;
  const bool knows_tools = chat_template.find("tools") != chat_template.npos;
  const bool tags = !knows_tools || chat_template.find(kToolOpen) != chat_template.npos;
  if (asked.tools.is_null() || asked.tool_choice.kind == ToolChoice::Kind::none ||
      (!required && !tags))
    return {};
  Json tools = Json::array();
  const auto& allowed = asked.tool_choice.allowed;
  for (const Json& tool : asked.tools) {
    const Json& f = tool["function"];
    if (!allowed.empty() &&
        std::ranges::find(allowed, f["name"].get<std::string>()) == allowed.end())
      continue;
    tools.push_back({{"name", f["name"]},
                     {"parameters", f.contains("parameters") && f["parameters"].is_object()
                                        ? f["parameters"]
                                        : Json{{"type", "object"}}},
                     {"strict", f.value("strict", Json(false)) == true}});
  }
  // A function that was named is called once.
  const bool parallel = tags && asked.parallel_tool_calls && allowed.size() != 1;
  const bool parameters = chat_template.find("\"parameters\"") != chat_template.npos;
  return {.kind = AnswerGrammar::Kind::tool_calls,
          .schema = {{"tools", std::move(tools)},
                     {"parallel", parallel},
                     {"required", required},
                     {"tags", tags},
                     {"arguments", !tags && parameters ? "parameters" : "arguments"}},
          .param = "tools",
          .hint = !required};
}

}  // namespace quire
