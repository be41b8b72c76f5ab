#include "server/dialect/anthropic/anthropic_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

namespace quire::anthropic {
namespace {

constexpr std::size_t kMessagesMax = 4096, kToolsMax = 1024, kBlocksMax = 1 << 16;
constexpr std::size_t kBreakpointsMax = 4;
constexpr Nanoseconds kMinute = 60'000'000'000;

std::string type_of(const Json& block) {
  return block.is_object() && block.contains("type") && block["type"].is_string()
             ? block["type"].get<std::string>()
             : "";
}

// "messages.3.content.0" of an error as "messages[3].content[0]", as segments are called.
std::string segment_name(std::string_view where) {
  std::string name;
  bool inside = false;
  for (std::size_t i = 0; i < where.size(); ++i) {
    const bool digit_next = i + 1 < where.size() && where[i + 1] >= '0' && where[i + 1] <= '9';
    if (where[i] != '.') {
      name += where[i];
      continue;
    }
    if (inside) name += ']';
    name += digit_next ? '[' : '.';
    inside = digit_next;
  }
  return inside ? name + ']' : name;
}

class BlockReader {
 public:
  BlockReader(Fields& body, GenerationRequest& asked) : body_(body), asked_(asked) {}

  void tools(const Json& list);
  void system(const Json& value);
  void message(const Json& m, std::size_t index);
  void finish(const Json* automatic);

 private:
  void refuse(const std::string& where, std::string message) {
    body_.refuse(bad_value(where, std::move(message)));
  }
  // Whose blocks follow: a message of this role, new unless the last one goes on.
  Json& open(const char* role);
  void end_part(std::string_view where, std::size_t end);
  void say(std::string_view text);  // appended to the message at hand
  std::optional<std::string> text_of(const Json& block, const std::string& where,
                                     const std::string& type);
  std::optional<std::string> document(const Json& block, const std::string& where);
  std::optional<std::string> result_text(const Json& content, const std::string& where,
                                         const Json*& control);
  void block(const Json& b, const std::string& role, const std::string& where);
  void call(const Json& b, const std::string& where);
  void result(const Json& b, const std::string& where);
  void mark(const Json* control, const std::string& where);

  Fields& body_;
  GenerationRequest& asked_;
  struct Called {
    std::string name, number;
  };
  std::map<std::string, Called> calls_;  // functions called so far, by id
  std::size_t blocks_ = 0;
  bool may_join_ = false;                // the next block may go on with the last message
  bool spoke_ = false;                   // the message at hand has text
  std::optional<CacheBreakpoint> last_;  // where the last block that can be cached ends
  bool last_marked_ = false;
  bool last_is_call_ = false;
};

const Json* control_of(const Json& block) {
  const auto at = block.find("cache_control");
  return at == block.end() || at->is_null() ? nullptr : &*at;
}

Json& BlockReader::open(const char* role) {
  if (!may_join_ || asked_.messages.empty() || asked_.messages.back()["role"] != role) {
    asked_.messages.push_back({{"role", role}, {"content", ""}});
    spoke_ = false;
  }
  may_join_ = true;
  return asked_.messages.back();
}

void BlockReader::say(std::string_view text) {
  std::string& content = asked_.messages.back()["content"].get_ref<std::string&>();
  if (spoke_) content += '\n';
  content += text;
  spoke_ = true;
}

void BlockReader::end_part(std::string_view where, std::size_t end) {
  last_ = {asked_.messages.size() - 1, end, 0};
  last_marked_ = false;
  asked_.parts.push_back({segment_name(where), last_->message, end});
}

// A breakpoint ends with the last part.
void BlockReader::mark(const Json* control, const std::string& where) {
  if (control == nullptr || body_.failed() || last_marked_) return;
  Fields f(*control, where);
  if (f.text("type", 32).value_or("") != "ephemeral") f.refuse("type", "must be ephemeral");
  const std::string ttl = f.text("ttl", 16).value_or("5m");
  if (ttl != "5m" && ttl != "1h") f.refuse("ttl", "must be 5m or 1h");
  if (f.failed()) return body_.refuse(f.error());
  const Nanoseconds time = ttl == "1h" ? 60 * kMinute : 5 * kMinute;
  if (!asked_.breakpoints.empty() && asked_.breakpoints.back().ttl < time)
    return refuse(
        where + ".ttl",
        "a ttl=\"1h\" breakpoint must not come after a ttl=\"5m\" one; the order is tools, "
        "system, messages");
  asked_.breakpoints.push_back({last_->message, last_->end, time});
  last_marked_ = true;
}

void BlockReader::tools(const Json& list) {
  if (!list.is_array() || list.size() > kToolsMax)
    return refuse("tools", fmt::format("must be a list of at most {}", kToolsMax));
  Json out = Json::array();
  for (std::size_t i = 0; i < list.size() && !body_.failed(); ++i) {
    const std::string where = fmt::format("tools.{}", i);
    if (!list[i].is_object()) return refuse(where, "must be an object");
    Fields f(list[i], where);
    if (const auto type = f.text("type", 64); type && *type != "custom")
      f.refuse("type", "tools of the vendor's servers are not available here; give your own",
               "unsupported_parameter");
    const std::string name = f.text("name", 128).value_or("");
    if (name.empty()) f.refuse("name", "must be 1 to 128 characters");
    Json function{{"name", name}};
    if (const auto about = f.text("description", 1 << 20)) function["description"] = *about;
    const Json& schema = f.require("input_schema");
    if (!f.failed() && !schema.is_object()) f.refuse("input_schema", "must be a JSON schema");
    if (f.failed()) return body_.refuse(f.error());
    function["parameters"] = schema;
    if (f.boolean("strict").value_or(false)) function["strict"] = true;
    if (f.failed()) return body_.refuse(f.error());
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
    last_ = {ConversationPart::kTools, ConversationPart::kWhole, 0};
    last_marked_ = false;
    mark(control_of(list[i]), where + ".cache_control");
  }
  if (out.empty()) return;
  asked_.tools = std::move(out);
  asked_.parts.push_back({"tools", ConversationPart::kTools});
}

void BlockReader::system(const Json& value) {
  if (value.is_string()) {
    if (value.get_ref<const std::string&>().empty()) return;
    open("system");
    say(value.get_ref<const std::string&>());
    return end_part("system.0", value.get_ref<const std::string&>().size());
  }
  if (!value.is_array() || value.size() > kBlocksMax)
    return refuse("system", "must be a string or a list of text blocks");
  for (std::size_t i = 0; i < value.size() && !body_.failed(); ++i) {
    const std::string where = fmt::format("system.{}", i);
    if (type_of(value[i]) != "text") return refuse(where, "must be a text block");
    const auto text = text_of(value[i], where, "text");
    if (!text) return;
    const Json& m = open("system");
    say(*text);
    end_part(where, m["content"].get_ref<const std::string&>().size());
    mark(control_of(value[i]), where + ".cache_control");
  }
}

std::optional<std::string> BlockReader::text_of(const Json& b, const std::string& where,
                                                const std::string& type) {
  if (type == "document") return document(b, where);
  if (!b.contains("text") || !b["text"].is_string()) {
    refuse(where + ".text", "must be a string");
    return std::nullopt;
  }
  if (b["text"].get_ref<const std::string&>().empty()) {
    refuse(where, control_of(b) ? "cache_control cannot be set for empty text blocks"
                                : "text content blocks must be non-empty");
    return std::nullopt;
  }
  return b["text"].get<std::string>();
}

// A text with its title and what is said about it.
std::optional<std::string> BlockReader::document(const Json& b, const std::string& where) {
  const Json source = b.value("source", Json());
  const std::string kind = type_of(source);
  std::string text;
  for (const char* before : {"title", "context"})
    if (const Json value = b.value(before, Json()); value.is_string() && value != "")
      text += value.get<std::string>() + '\n';
  if (kind == "text" && source.contains("data") && source["data"].is_string()) {
    text += source["data"].get<std::string>();
  } else if (kind == "content" && source.contains("content")) {
    const Json* none = nullptr;
    const auto inner = result_text(source["content"], where + ".source.content", none);
    if (!inner) return std::nullopt;
    text += *inner;
  } else {
    refuse(where + ".source",
           "this model takes documents of plain text: {\"type\": \"text\", "
           "\"media_type\": \"text/plain\", \"data\": ...}");
    return std::nullopt;
  }
  if (text.empty()) refuse(where, "documents must be non-empty");
  return text;
}

// A string or text blocks; `control` is the last breakpoint among them.
std::optional<std::string> BlockReader::result_text(const Json& content, const std::string& where,
                                                    const Json*& control) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse(where, "must be a string or a list of blocks");
    return std::nullopt;
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}.{}", where, i);
    if (++blocks_ > kBlocksMax) return refuse(at, "too many blocks"), std::nullopt;
    const std::string type = type_of(content[i]);
    if (type != "text" && type != "document") {
      refuse(at, type.empty() ? "must be an object with a type"
                              : "this model takes text, not " + type + " blocks");
      return std::nullopt;
    }
    const auto one = type == "text" ? text_of(content[i], at, type) : document(content[i], at);
    if (!one) return std::nullopt;
    if (i > 0) text += '\n';
    text += *one;
    if (const Json* c = control_of(content[i])) control = c;
  }
  return text;
}

void BlockReader::call(const Json& b, const std::string& where) {
  if (!b.contains("name") || !b["name"].is_string() || !b.contains("id") || !b["id"].is_string())
    return refuse(where, "tool_use needs an id and a name");
  if (b.contains("input") && !b["input"].is_object())
    return refuse(where + ".input", "must be an object");
  // Clients' ids are random: prompts must not hold them.
  const std::string number = std::to_string(calls_.size());
  calls_[b["id"].get<std::string>()] = {b["name"].get<std::string>(), number};
  Json& m = open("assistant");
  m["tool_calls"].push_back(
      {{"type", "function"},
       {"function", {{"name", b["name"]}, {"arguments", b.value("input", Json::object())}}},
       {"id", number}});
}

void BlockReader::result(const Json& b, const std::string& where) {
  const auto id = b.find("tool_use_id");
  if (id == b.end() || !id->is_string()) return refuse(where + ".tool_use_id", "is required");
  const auto call = calls_.find(id->get<std::string>());
  if (call == calls_.end())
    return refuse(where + ".tool_use_id",
                  "unexpected tool_use_id: no earlier tool_use block has it");
  const Json* control = control_of(b);  // or one within the content
  const auto content = b.find("content");
  auto text =
      content == b.end() ? std::string() : result_text(*content, where + ".content", control);
  if (!text) return;
  if (b.value("is_error", Json(false)) == true) text->insert(0, "Error: ");
  asked_.messages.push_back({{"role", "tool"},
                             {"content", std::move(*text)},
                             {"name", call->second.name},
                             {"tool_call_id", call->second.number}});
  may_join_ = false;
  end_part(where, ConversationPart::kWhole);
  mark(control, where + ".cache_control");
}

void BlockReader::block(const Json& b, const std::string& role, const std::string& where) {
  if (++blocks_ > kBlocksMax) return refuse(where, "too many blocks");
  const std::string type = type_of(b);
  last_is_call_ = type == "tool_use";
  if (type == "thinking" || type == "redacted_thinking") {
    if (role != "assistant") return refuse(where, type + " blocks are the assistant's");
    if (control_of(b)) refuse(where, "cache_control cannot be set for thinking blocks");
    return;
  }
  if (type == "text" || type == "document") {
    const auto text = text_of(b, where, type);
    if (!text || body_.failed()) return;
    const Json& m = open(role.c_str());
    say(*text);
    end_part(where, m["content"].get_ref<const std::string&>().size());
    return mark(control_of(b), where + ".cache_control");
  }
  if (type == "tool_use" && role == "assistant") {
    call(b, where);
    if (body_.failed()) return;
    end_part(where, ConversationPart::kWhole);
    return mark(control_of(b), where + ".cache_control");
  }
  if (type == "tool_result" && role == "user") return result(b, where);
  refuse(where, type.empty() ? "must be an object with a type"
                : type == "tool_use" || type == "tool_result"
                    ? type + " blocks do not belong into messages of the " + role
                    : "this model takes text, not " + type + " blocks");
}

void BlockReader::message(const Json& m, std::size_t index) {
  const std::string where = fmt::format("messages.{}", index);
  if (!m.is_object()) return refuse(where, "must be an object");
  const std::string role =
      m.contains("role") && m["role"].is_string() ? m["role"].get<std::string>() : "";
  if (role != "user" && role != "assistant" && role != "system")
    return refuse(where + ".role", "must be user, assistant or system");
  if (!m.contains("content")) return refuse(where + ".content", "Field required");
  const Json& content = m["content"];
  // A new turn of the same role goes on with the last message; the system prompt is not a turn.
  may_join_ = index > 0 && may_join_;
  last_is_call_ = false;
  if (content.is_string()) {
    const auto& text = content.get_ref<const std::string&>();
    if (text.empty()) return refuse(where, "messages must have non-empty content");
    const Json& whole = open(role.c_str());
    say(text);
    return end_part(where, whole["content"].get_ref<const std::string&>().size());
  }
  if (!content.is_array())
    return refuse(where + ".content", "must be a string or a list of blocks");
  if (content.empty()) return refuse(where, "messages must have non-empty content");
  for (std::size_t i = 0; i < content.size() && !body_.failed(); ++i)
    block(content[i], role, fmt::format("{}.content.{}", where, i));
}

void BlockReader::finish(const Json* automatic) {
  if (body_.failed()) return;
  if (asked_.messages.empty()) return refuse("messages", "at least one message is required");
  if (automatic != nullptr && last_) mark(automatic, "cache_control");
  if (asked_.breakpoints.size() > kBreakpointsMax && !body_.failed())
    return body_.refuse({.message = fmt::format(
                             "A maximum of {} blocks with cache_control may be provided. Found {}.",
                             kBreakpointsMax, asked_.breakpoints.size()),
                         .code = "invalid_value",
                         .param = "cache_control"});
  const Json& last = asked_.messages.back();
  if (last["role"] != "assistant") return;
  if (last_is_call_ || last["content"] == "")
    return refuse("messages", "the last message has tool calls whose results are missing");
  asked_.continue_final_message = true;
  asked_.add_generation_prompt = false;
}

}  // namespace

void parse_blocks(Fields& body, GenerationRequest& asked) {
  BlockReader reader(body, asked);
  if (const Json* tools = body.find("tools")) reader.tools(*tools);
  if (const Json* system = body.find("system"); system != nullptr && !body.failed())
    reader.system(*system);
  const Json& messages = body.require("messages");
  if (body.failed()) return;
  if (!messages.is_array() || messages.empty() || messages.size() > kMessagesMax)
    return body.refuse("messages", fmt::format("must be a list of 1 to {} messages", kMessagesMax));
  for (std::size_t i = 0; i < messages.size() && !body.failed(); ++i)
    reader.message(messages[i], i);
  reader.finish(body.find("cache_control"));
}

void parse_tool_choice(Fields& body, GenerationRequest& asked) {
  auto choice = body.object("tool_choice");
  if (!choice) return;
  const std::string type = choice->text("type", 16).value_or("");
  if (type == "none") {
    asked.tool_choice.kind = ToolChoice::Kind::none;
  } else if (type == "any" || type == "tool") {
    asked.tool_choice.kind = ToolChoice::Kind::required;
    if (asked.tools.is_null()) return choice->refuse("type", "needs tools");
  } else if (type != "auto") {
    return choice->refuse("type", "must be auto, any, tool or none");
  }
  if (type == "tool") {
    const std::string name = choice->text("name", 128).value_or("");
    const bool known = std::ranges::any_of(
        asked.tools, [&](const Json& tool) { return tool["function"]["name"] == name; });
    if (!known) return choice->refuse("name", "there is no tool '" + name + "'");
    asked.tool_choice.allowed = {name};
  }
  asked.parallel_tool_calls = !choice->boolean("disable_parallel_tool_use").value_or(false);
}

}  // namespace quire::anthropic
