#include "server/tools.h"

#include <fmt/core.h>

#include <deque>
#include <map>

#include "server/api_error.h"

namespace quire {
namespace {

// What messages_with_tools teaches, and the format "hermes" reads.
constexpr std::string_view kToolOpen = "<tool_call>", kToolClose = "</tool_call>";

std::string calls_as_text(const Json& calls) {
  std::string text;
  for (const Json& call : calls) {
    if (!text.empty()) text += '\n';
    text += std::string(kToolOpen) + "\n" + dump(call["function"]) + "\n" + std::string(kToolClose);
  }
  return text;
}

std::string text_of(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

void number_calls(Json& messages) {
  std::map<std::string, std::string> numbered;  // by the client's id
  std::deque<std::string> unanswered;           // for results that name no call
  unsigned next = 0;
  for (Json& m : messages) {
    if (m.contains("tool_calls")) {
      unanswered.clear();
      for (Json& call : m["tool_calls"]) {
        const std::string id = fmt::format("{:09}", next++);  // Mistral's template wants nine
        if (const std::string own = text_of(call, "id"); !own.empty()) numbered[own] = id;
        unanswered.push_back(id);
        call["id"] = id;
      }
    } else if (m["role"] == "tool") {
      const auto call = numbered.find(text_of(m, "tool_call_id"));
      m["tool_call_id"] = call != numbered.end() ? call->second
                          : unanswered.empty()   ? fmt::format("{:09}", next++)
                                                 : unanswered.front();
      if (!unanswered.empty()) unanswered.pop_front();
    }
  }
}

}  // namespace

Json messages_for_template(const Json& messages, const Json& tools,
                           std::string_view chat_template) {
  Json out = messages;
  number_calls(out);
  const bool thinking = chat_template.find(".thinking") != chat_template.npos ||
                        chat_template.find("'thinking'") != chat_template.npos;
  for (Json& m : out) {
    if (!m.contains("reasoning_content")) continue;
    m["reasoning"] = m["reasoning_content"];
    if (thinking) m["thinking"] = m["reasoning_content"];
  }
  if (!tools.is_null() && chat_template.find("message['tools']") != chat_template.npos) {
    if (out.empty() || out.front()["role"] != "system")
      out.insert(out.begin(), Json{{"role", "system"}, {"content", ""}});
    out.front()["tools"] = dump(tools);
  }
  return out;
}

Json with_text_arguments(Json messages) {
  for (Json& m : messages)
    if (m.contains("tool_calls"))
      for (Json& call : m["tool_calls"])
        if (Json& f = call["function"]; !f["arguments"].is_string())
          f["arguments"] = dump(f["arguments"]);
  return messages;
}

Json messages_with_tools(const Json& messages, const Json& tools) {
  Json out = Json::array();
  std::size_t first = 0;
  if (!tools.is_null()) {
    std::string about = "You may call functions. Each line describes one:\n";
    for (const Json& tool : tools) about += dump(tool["function"]) + "\n";
    about +=
        "To call a function, write its name and arguments as JSON between these tags, once per "
        "call:\n<tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n</tool_call>";
    if (!messages.empty() && messages.front()["role"] == "system") {
      about += "\n\n" + messages.front()["content"].get<std::string>();
      first = 1;
    }
    out.push_back({{"role", "system"}, {"content", about}});
  }
  for (std::size_t i = first; i < messages.size(); ++i) {
    Json m = messages[i];
    if (m["role"] == "tool") {
      m = {{"role", "user"},
           {"content",
            "<tool_response>\n" + m["content"].get<std::string>() + "\n</tool_response>"}};
    } else if (m.contains("tool_calls")) {
      std::string text = m["content"].get<std::string>();
      if (!text.empty()) text += '\n';
      m = {{"role", m["role"]}, {"content", text + calls_as_text(m["tool_calls"])}};
    }
    out.push_back(std::move(m));
  }
  return out;
}

}  // namespace quire
