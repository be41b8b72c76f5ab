#include "server/dialect/responses/items.h"

#include <fmt/core.h>

#include "server/dialect/responses/turn.h"

namespace quire::responses {
namespace {

constexpr std::size_t kItemsMax = 1 << 14, kItemIdMax = 256;

std::string text_in(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
}

// Contents as a list of parts of the types that clients expect. What is wrong stays as it is:
// openai::read_messages() says so.
Json as_parts(const Json& content, bool assistant) {
  const char* const type = assistant ? "output_text" : "input_text";
  const auto part_of = [&](const Json& text) {
    Json part{{"type", type}, {"text", text}};
    if (assistant) part["annotations"] = Json::array();
    return part;
  };
  if (content.is_string()) return Json::array({part_of(content)});
  if (!content.is_array()) return content;
  Json parts = Json::array();
  for (const Json& given : content) {
    const std::string is = given.is_object() ? text_in(given, "type") : "";
    if (is != "input_text" && is != "output_text" && is != "text") {
      parts.push_back(given);
      continue;
    }
    Json part = part_of(given.contains("text") ? given["text"] : Json());
    if (given.contains("prompt_cache_breakpoint"))
      part["prompt_cache_breakpoint"] = given["prompt_cache_breakpoint"];
    parts.push_back(std::move(part));
  }
  return parts;
}

std::size_t text_bytes(const Json& content) {
  if (content.is_string()) return content.get_ref<const std::string&>().size();
  std::size_t sum = 0;
  if (content.is_array())
    for (const Json& part : content)
      for (const char* name : {"text", "refusal"})
        if (part.is_object() && part.contains(name)) sum += text_bytes(part[name]);
  return sum;
}

}  // namespace

std::string item_id(std::string_view prefix, std::string_view response_id, std::size_t number) {
  return fmt::format("{}_{}_{}", prefix, response_id, number);
}

std::string response_of_item(std::string_view id) {
  const std::size_t first = id.find('_'), last = id.rfind('_');
  if (first == id.npos || last <= first + 1) return {};
  return std::string(kResponsePrefix) + std::string(id.substr(first + 1, last - first - 1));
}

void ItemReader::read(const Json& item, const std::string& where) {
  if (body.failed()) return;
  if (!item.is_object()) return body.refuse(bad_value(where, "must be an object"));
  if (items.size() >= kItemsMax)
    return body.refuse(bad_value(where, fmt::format("is one of more than {} items", kItemsMax)));
  std::string type = text_in(item, "type");
  if (type.empty()) type = item.contains("role") ? "message" : "item_reference";
  if (type == "message") {
    read_message(item, where);
  } else if (type == "function_call") {
    read_call(item, where);
  } else if (type == "function_call_output") {
    read_output(item, where);
  } else if (type == "reasoning") {
    const Json summary = item.value("summary", Json::array());
    const Json content = item.value("content", Json::array());
    if (spend(summary) && spend(content))
      keep(item, "rs", {{"type", type}, {"summary", summary}, {"content", content}});
  } else if (type == "item_reference") {
    const std::string id = text_in(item, "id");
    const Json found = referred && !id.empty() ? referred(id) : Json();
    if (!found.is_object() || text_in(found, "type") == type)
      return body.refuse(bad_value(where + ".id", "names no item of a stored response"));
    read(found, where);
  } else {
    body.refuse(bad_value(where + ".type",
                          "must be message, function_call, function_call_output, reasoning or "
                          "item_reference, not " +
                              type,
                          "unsupported_parameter"));
  }
}

// An item may be referred to many times, so bodies do not bound what they mean.
bool ItemReader::spend(const Json& content) {
  const std::size_t bytes = text_bytes(content);
  if (bytes <= text_left) {
    text_left -= bytes;
    return true;
  }
  body.refuse({.message = "the items have more text than this model's maximum context length holds",
               .code = "context_length_exceeded",
               .param = "input"});
  return false;
}

void ItemReader::keep(const Json& item, const char* prefix, Json fields) {
  std::string id = text_in(item, "id");
  if (id.empty() || id.size() > kItemIdMax) id = item_id(prefix, response_id, items.size());
  Json kept{{"id", std::move(id)}};
  kept.update(fields);
  items.push_back(std::move(kept));
}

void ItemReader::say(const char* role, const Json& content, const std::string& where) {
  messages.push_back({{"role", role}, {"content", content}});
  names.push_back(where);
}

void ItemReader::read_message(const Json& item, const std::string& where) {
  const std::string role = text_in(item, "role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    return body.refuse(bad_value(where + ".role", "must be user, assistant, system or developer"));
  if (!item.contains("content") || item["content"].is_null())
    return body.refuse(bad_value(where + ".content", "is required", "missing_required_parameter"));
  if (!spend(item["content"])) return;
  const Json content = as_parts(item["content"], role == "assistant");
  keep(item, "msg",
       {{"type", "message"}, {"role", role}, {"status", "completed"}, {"content", content}});
  say(role.c_str(), content, where);
}

void ItemReader::read_call(const Json& item, const std::string& where) {
  for (const char* name : {"call_id", "name", "arguments"})
    if (!item.contains(name) || !item[name].is_string())
      return body.refuse(bad_value(where + "." + name, "must be a string"));
  if (!spend(item["arguments"]) || !spend(item["name"])) return;
  keep(item, "fc",
       {{"type", "function_call"},
        {"call_id", item["call_id"]},
        {"name", item["name"]},
        {"arguments", item["arguments"]},
        {"status", "completed"}});
  calls.insert(item["call_id"].get<std::string>());
  if (messages.empty() || messages.back()["role"] != "assistant") say("assistant", "", where);
  messages.back()["tool_calls"].push_back(
      {{"id", item["call_id"]},
       {"type", "function"},
       {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
}

void ItemReader::read_output(const Json& item, const std::string& where) {
  const std::string call = text_in(item, "call_id");
  if (!calls.contains(call))
    return body.refuse(
        bad_value(where + ".call_id", "answers no function_call of an earlier item"));
  const Json output = item.contains("output") ? item["output"] : Json();
  if (!output.is_string() && !output.is_array())
    return body.refuse(bad_value(where + ".output", "must be a string or a list of parts"));
  if (!spend(output)) return;
  keep(item, "fco",
       {{"type", "function_call_output"},
        {"call_id", call},
        {"output", output},
        {"status", "completed"}});
  say("tool", output, where);
  messages.back()["tool_call_id"] = call;
}

}  // namespace quire::responses
