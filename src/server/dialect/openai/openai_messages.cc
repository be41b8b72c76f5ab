#include "server/dialect/openai/openai_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>

namespace quire::openai {
namespace {

constexpr std::size_t kMessagesMax = 4096, kToolsMax = 1024;
constexpr std::size_t kBreakpointsMax = 4;  // the latest count

struct MessageReader {
  Fields& body;
  GenerationRequest& asked;
  struct Called {
    std::string name, number;
  };
  std::map<std::string, Called> calls;  // functions called so far, by call id

  // A string, or parts of text that are joined by line feeds.
  std::string content(const Json& value, const std::string& where, std::size_t message) {
    if (value.is_string()) return value.get<std::string>();
    std::string text;
    if (!value.is_array()) {
      body.refuse(bad_value(where, "must be a string or a list of parts"));
      return text;
    }
    bool first = true;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const Json& part = value[i];
      const std::string at = fmt::format("{}[{}]", where, i);
      const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                   ? part["type"].get<std::string>()
                                   : "";
      const char* key = type == "text" || type == "input_text" || type == "output_text" ? "text"
                        : type == "refusal"                                             ? "refusal"
                                                                                        : nullptr;
      if (key == nullptr) {
        body.refuse(bad_value(at, type.empty() ? "must be an object with a type"
                                               : "this model takes text, not " + type + " parts"));
        return text;
      }
      if (!part.contains(key) || !part[key].is_string()) {
        body.refuse(bad_value(at + "." + key, "must be a string"));
        return text;
      }
      if (!first) text += '\n';
      first = false;
      text += part[key].get_ref<const std::string&>();
      if (part.contains("prompt_cache_breakpoint") && part["prompt_cache_breakpoint"].is_object())
        breakpoint(part["prompt_cache_breakpoint"], at, message, text.size());
    }
    return text;
  }

  void breakpoint(const Json& mark, const std::string& where, std::size_t message,
                  std::size_t bytes) {
    Fields f(mark, where + ".prompt_cache_breakpoint");
    if (const auto mode = f.text("mode", 16); mode && *mode != "explicit")
      f.refuse("mode", "must be explicit");
    const auto ttl = f.duration("ttl");
    if (f.failed()) return body.refuse(f.error());
    if (asked.breakpoints.size() == kBreakpointsMax)
      asked.breakpoints.erase(asked.breakpoints.begin());
    asked.breakpoints.push_back({message, bytes, ttl.value_or(0)});
  }

  Json tool_calls(const Json& list, const std::string& where) {
    Json out = Json::array();
    if (!list.is_array()) {
      body.refuse(bad_value(where, "must be a list"));
      return out;
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", where, i);
      if (!list[i].is_object() || !list[i].contains("function")) {
        body.refuse(bad_value(at, "must be an object with a function"));
        return out;
      }
      const Json call = function_call(list[i]["function"], at + ".function");
      out.push_back({{"type", "function"}, {"function", call}});
      if (list[i].contains("id") && list[i]["id"].is_string() && call.contains("name")) {
        // Clients' ids are random: prompts must not hold them.
        const std::string number = std::to_string(calls.size());
        calls[list[i]["id"].get<std::string>()] = {call["name"].get<std::string>(), number};
        out.back()["id"] = number;
      }
    }
    return out;
  }

  Json function_call(const Json& call, const std::string& where) {
    if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) {
      body.refuse(bad_value(where + ".name", "is required"));
      return Json::object();
    }
    Json arguments = call.value("arguments", Json("{}"));
    if (arguments.is_string()) {
      auto parsed = parse_json(arguments.get_ref<const std::string&>(), kRequestJson);
      if (parsed.ok()) arguments = std::move(parsed.value());
    }
    return {{"name", call["name"]}, {"arguments", std::move(arguments)}};
  }

  void message(const Json& m, const std::string& where) {
    const std::size_t index = asked.messages.size();
    if (!m.is_object()) return body.refuse(bad_value(where, "must be an object"));
    static constexpr std::array kRoles = {"system",    "developer", "user",
                                          "assistant", "tool",      "function"};
    const std::string role =
        m.contains("role") && m["role"].is_string() ? m["role"].get<std::string>() : "";
    if (std::ranges::find(kRoles, role) == kRoles.end())
      return body.refuse(bad_value(where + ".role",
                                   "must be system, developer, user, assistant, tool or function"));

    Json out = {{"role", role == "developer" ? "system" : role == "function" ? "tool" : role}};
    const auto has = [&](const char* name) { return m.contains(name) && !m[name].is_null(); };
    const bool calls_tools = role == "assistant" && (has("tool_calls") || has("function_call"));
    if (has("content"))
      out["content"] = content(m["content"], where + ".content", index);
    else if (role == "assistant" && (calls_tools || has("refusal")))
      out["content"] = has("refusal") && m["refusal"].is_string() ? m["refusal"] : Json("");
    else
      return body.refuse(
          bad_value(where + ".content", "is required", "missing_required_parameter"));
    if (has("name") && m["name"].is_string()) out["name"] = m["name"];
    for (const char* name : {"reasoning", "reasoning_content"})
      if (role == "assistant" && has(name) && m[name].is_string())
        out["reasoning_content"] = m[name];
    if (role == "assistant" && has("tool_calls"))
      out["tool_calls"] = tool_calls(m["tool_calls"], where + ".tool_calls");
    else if (role == "assistant" && has("function_call"))
      out["tool_calls"] = Json::array(
          {{{"type", "function"},
            {"function", function_call(m["function_call"], where + ".function_call")}}});
    if (role == "tool") {
      if (!has("tool_call_id") || !m["tool_call_id"].is_string())
        return body.refuse(
            bad_value(where + ".tool_call_id", "is required", "missing_required_parameter"));
      const auto call = calls.find(m["tool_call_id"].get<std::string>());
      if (call == calls.end())
        return body.refuse(bad_value(where + ".tool_call_id",
                                     "answers no tool call of an earlier assistant message"));
      out["name"] = call->second.name;
      out["tool_call_id"] = call->second.number;
    }
    asked.messages.push_back(std::move(out));
  }
};

void choose_tools(Fields& body, const Json& choice, GenerationRequest& asked) {
  if (choice == "none") {
    asked.tool_choice.kind = ToolChoice::Kind::none;
  } else if (choice == "auto") {
    asked.tool_choice.kind = ToolChoice::Kind::automatic;
  } else if (choice == "required") {
    asked.tool_choice.kind = ToolChoice::Kind::required;
  } else if (choice.is_object()) {
    const Json& named = choice.contains("function") ? choice["function"] : choice;
    if (choice.value("type", Json()) == "allowed_tools") {
      const Json& allowed =
          choice.contains("allowed_tools") ? choice["allowed_tools"] : Json(choice);
      const bool required = allowed.is_object() && allowed.value("mode", Json()) == "required";
      asked.tool_choice.kind = required ? ToolChoice::Kind::required : ToolChoice::Kind::automatic;
      if (!allowed.is_object() || !allowed.contains("tools") || !allowed["tools"].is_array())
        return body.refuse("tool_choice", "allowed_tools needs a list of tools");
      for (const Json& tool : allowed["tools"]) {
        const Json& f = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
        if (!f.is_object() || !f.contains("name") || !f["name"].is_string())
          return body.refuse("tool_choice", "allowed_tools must name functions");
        asked.tool_choice.allowed.push_back(f["name"].get<std::string>());
      }
    } else if (named.is_object() && named.contains("name") && named["name"].is_string()) {
      asked.tool_choice = {ToolChoice::Kind::required, {named["name"].get<std::string>()}};
    } else {
      return body.refuse("tool_choice", "must name a function");
    }
  } else {
    return body.refuse("tool_choice", "must be none, auto, required or name a function");
  }
  for (const std::string& name : asked.tool_choice.allowed) {
    const bool known =
        asked.tools.is_array() && std::ranges::any_of(asked.tools, [&](const Json& tool) {
          return tool["function"]["name"] == name;
        });
    if (!known) return body.refuse("tool_choice", "there is no tool '" + name + "'");
  }
  if (asked.tool_choice.kind == ToolChoice::Kind::required && asked.tools.is_null())
    body.refuse("tool_choice", "needs tools");
}

}  // namespace

void parse_messages(Fields& body, GenerationRequest& asked) {
  const Json& messages = body.require("messages");
  if (body.failed()) return;
  if (!messages.is_array() || messages.empty() || messages.size() > kMessagesMax)
    return body.refuse("messages", fmt::format("must be a list of 1 to {} messages", kMessagesMax));
  read_messages(
      body, messages, [](std::size_t i) { return fmt::format("messages[{}]", i); }, asked);
}

void read_messages(Fields& body, const Json& messages,
                   const std::function<std::string(std::size_t)>& name, GenerationRequest& asked) {
  MessageReader reader{body, asked, {}};
  for (std::size_t i = 0; i < messages.size() && !body.failed(); ++i)
    reader.message(messages[i], name(i));
}

void parse_tools(Fields& body, GenerationRequest& asked) {
  const Json* tools = body.find("tools");
  const Json* functions = body.find("functions");
  Json wrapped = Json::array();
  if (tools == nullptr && functions != nullptr && functions->is_array()) {
    for (const Json& f : *functions) wrapped.push_back({{"type", "function"}, {"function", f}});
    tools = &wrapped;
    asked.extras["old_functions"] = true;
  }
  if (tools != nullptr) {
    if (!tools->is_array() || tools->size() > kToolsMax)
      return body.refuse("tools", fmt::format("must be a list of at most {}", kToolsMax));
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const Json& tool = (*tools)[i];
      const std::string where = fmt::format("tools[{}]", i);
      if (!tool.is_object() || tool.value("type", Json()) != "function")
        return body.refuse(bad_value(where + ".type", "must be function"));
      if (!tool.contains("function") || !tool["function"].is_object() ||
          !tool["function"].contains("name") || !tool["function"]["name"].is_string() ||
          tool["function"]["name"].get_ref<const std::string&>().empty() ||
          tool["function"]["name"].get_ref<const std::string&>().size() > 128)
        return body.refuse(bad_value(where + ".function.name", "must be 1 to 128 characters"));
      if (tool["function"].contains("parameters") && !tool["function"]["parameters"].is_null() &&
          !tool["function"]["parameters"].is_object())
        return body.refuse(bad_value(where + ".function.parameters", "must be a JSON schema"));
    }
    if (!tools->empty()) asked.tools = *tools;
  }
  if (const Json* choice = body.find("tool_choice")) choose_tools(body, *choice, asked);
  if (const Json* call = body.find("function_call"); call != nullptr && tools == &wrapped)
    choose_tools(body, *call, asked);
  asked.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
}

}  // namespace quire::openai
