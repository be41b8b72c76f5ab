#include "server/dialect/gemini/gemini_contents.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "server/dialect/gemini/gemini_schema.h"

namespace quire::gemini {
namespace {

constexpr std::size_t kContentsMax = 4096, kDeclarationsMax = 1024, kNameMax = 128;

// Of a part, besides what it holds.
constexpr std::array kAboutParts = {"thought",        "thoughtSignature", "thought_signature",
                                    "partMetadata",   "part_metadata",    "videoMetadata",
                                    "video_metadata", "mediaResolution",  "media_resolution"};

const Json* either(const Json& object, const char* camel) {
  auto at = object.find(camel);
  if (at == object.end()) at = object.find(snake_case(camel));
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

bool is_name(const Json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty() &&
         value.get_ref<const std::string&>().size() <= kNameMax;
}

struct ContentReader {
  Fields& body;
  Json& messages;

  void refuse(std::string where, std::string message) {
    body.refuse(bad_value(std::move(where), std::move(message)));
  }

  // The message that more of this role is added to.
  Json& message_of(const char* role) {
    if (messages.empty() || messages.back()["role"] != role)
      messages.push_back({{"role", role}, {"content", ""}});
    return messages.back();
  }

  // "" between texts of the model, a line feed between others.
  void add_text(const char* role, const std::string& text) {
    const bool begins = messages.empty() || messages.back()["role"] != role;
    auto& content = message_of(role)["content"].get_ref<std::string&>();
    if (!begins && std::string_view(role) != "assistant") content += '\n';
    content += text;
  }

  void add_call(const Json& call, const std::string& where) {
    if (!call.is_object() || !call.contains("name") || !is_name(call["name"]))
      return refuse(where + ".name", fmt::format("must be 1 to {} characters", kNameMax));
    Json args = call.value("args", Json::object());
    if (args.is_null()) args = Json::object();
    if (!args.is_object()) return refuse(where + ".args", "must be an object");
    Json& message = message_of("assistant");
    if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
    message["tool_calls"].push_back(
        {{"type", "function"},
         {"function", {{"name", call["name"]}, {"arguments", std::move(args)}}}});
  }

  void add_response(const Json& response, const std::string& where) {
    if (!response.is_object() || !response.contains("name") || !is_name(response["name"]))
      return refuse(where + ".name", fmt::format("must be 1 to {} characters", kNameMax));
    const Json content = response.value("response", Json::object());
    messages.push_back({{"role", "tool"}, {"name", response["name"]}, {"content", dump(content)}});
  }

  void part(const Json& part, bool model, const std::string& where) {
    if (!part.is_object()) return refuse(where, "must be an object");
    if (part.value("thought", Json(false)) == true)
      return;  // what it thought before is not said again
    const Json* const text = either(part, "text");
    const Json* const call = either(part, "functionCall");
    const Json* const response = either(part, "functionResponse");
    if (text != nullptr) {
      if (!text->is_string()) return refuse(where + ".text", "must be a string");
      add_text(model ? "assistant" : "user", text->get_ref<const std::string&>());
    } else if (call != nullptr) {
      if (!model) return refuse(where + ".functionCall", "belongs into a content of role model");
      add_call(*call, where + ".functionCall");
    } else if (response != nullptr) {
      if (model) return refuse(where + ".functionResponse", "belongs into a content of role user");
      add_response(*response, where + ".functionResponse");
    } else {
      for (const auto& [name, value] : part.items())
        if (!value.is_null() && std::ranges::find(kAboutParts, name) == kAboutParts.end())
          return refuse(where, "this model takes text, not " + name + " parts");
    }
  }

  void content(const Json& content, const std::string& where) {
    if (!content.is_object()) return refuse(where, "must be an object");
    const Json* const given = either(content, "role");
    const std::string role = given == nullptr     ? "user"
                             : given->is_string() ? given->get<std::string>()
                                                  : "";
    const bool model = role == "model";
    if (!model && role != "user" && role != "function" && role != "tool")
      return refuse(where + ".role", "must be user or model");
    const Json* const parts = either(content, "parts");
    if (parts == nullptr && model) return;  // an answer of nothing
    if (parts == nullptr || !parts->is_array())
      return refuse(where + ".parts", "must be a list of parts");
    for (std::size_t i = 0; i < parts->size() && !body.failed(); ++i)
      part((*parts)[i], model, fmt::format("{}.parts[{}]", where, i));
  }

  // A text, a content, or a list of parts.
  void system(const Json& instruction) {
    const Json* parts = &instruction;
    Json one;
    if (instruction.is_object()) parts = either(instruction, "parts");
    if (instruction.is_string()) {
      one = Json::array({{{"text", instruction}}});
      parts = &one;
    }
    if (parts == nullptr || !parts->is_array())
      return refuse("systemInstruction.parts", "must be a list of parts");
    for (std::size_t i = 0; i < parts->size(); ++i) {
      const Json& p = (*parts)[i];
      const Json* const text = p.is_object() ? either(p, "text") : nullptr;
      if (text == nullptr || !text->is_string())
        return refuse(fmt::format("systemInstruction.parts[{}].text", i), "must be a string");
      add_text("system", text->get_ref<const std::string&>());
    }
  }
};

void declare(Fields& body, const Json& declaration, const std::string& where, Json& tools) {
  if (!declaration.is_object() || !declaration.contains("name") || !is_name(declaration["name"]))
    return body.refuse(
        bad_value(where + ".name", fmt::format("must be 1 to {} characters", kNameMax)));
  const Json* parameters = either(declaration, "parameters");
  if (parameters == nullptr) parameters = either(declaration, "parametersJsonSchema");
  if (parameters != nullptr && !parameters->is_object())
    return body.refuse(bad_value(where + ".parameters", "must be a schema"));
  Json function{{"name", declaration["name"]}};
  if (const Json* about = either(declaration, "description"); about && about->is_string())
    function["description"] = *about;
  function["parameters"] = parameters != nullptr
                               ? json_schema_of(*parameters)
                               : Json{{"type", "object"}, {"properties", Json::object()}};
  tools.push_back({{"type", "function"}, {"function", std::move(function)}});
}

void choose(Fields& config, GenerationRequest& asked) {
  const std::string mode = config.text("mode", 64).value_or("AUTO");
  if (mode == "NONE") {
    asked.tool_choice.kind = ToolChoice::Kind::none;
  } else if (mode == "ANY") {
    asked.tool_choice.kind = ToolChoice::Kind::required;
    if (asked.tools.is_null()) config.refuse("mode", "ANY needs functionDeclarations");
  } else if (mode != "AUTO" && mode != "VALIDATED" && mode != "MODE_UNSPECIFIED") {
    config.refuse("mode", "must be AUTO, ANY or NONE");
  }
  const Json* const names = config.find("allowedFunctionNames");
  if (names == nullptr || config.failed()) return;
  if (!names->is_array()) return config.refuse("allowedFunctionNames", "must be a list of names");
  for (const Json& name : *names) {
    const bool known =
        asked.tools.is_array() && std::ranges::any_of(asked.tools, [&](const Json& tool) {
          return tool["function"]["name"] == name;
        });
    if (!known)
      return config.refuse("allowedFunctionNames", "must name functions that are declared");
    asked.tool_choice.allowed.push_back(name.get<std::string>());
  }
}

}  // namespace

void parse_contents(Fields& body, GenerationRequest& asked) {
  ContentReader reader{body, asked.messages};
  if (const Json* instruction = body.find("systemInstruction")) reader.system(*instruction);
  const Json& contents = body.require("contents");
  if (body.failed()) return;
  const Json list = contents.is_object() ? Json::array({contents}) : Json();
  const Json& all = contents.is_object() ? list : contents;
  if (!all.is_array() || all.empty() || all.size() > kContentsMax)
    return body.refuse("contents", fmt::format("must be a list of 1 to {} contents", kContentsMax));
  const std::size_t before = asked.messages.size();
  for (std::size_t i = 0; i < all.size() && !body.failed(); ++i)
    reader.content(all[i], fmt::format("contents[{}]", i));
  if (!body.failed() && asked.messages.size() == before)
    body.refuse("contents", "must hold a text");
}

void parse_tools(Fields& body, GenerationRequest& asked) {
  if (const Json* tools = body.find("tools")) {
    const Json list = tools->is_object() ? Json::array({*tools}) : *tools;
    if (!list.is_array() || list.size() > kDeclarationsMax)
      return body.refuse("tools", fmt::format("must be a list of at most {}", kDeclarationsMax));
    Json all = Json::array();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string where = fmt::format("tools[{}]", i);
      if (!list[i].is_object()) return body.refuse(bad_value(where, "must be an object"));
      for (const auto& [name, value] : list[i].items())
        if (name != "functionDeclarations" && name != "function_declarations" && !value.is_null())
          return body.refuse(bad_value(where + "." + name, "is no tool that this server has",
                                       "unsupported_parameter"));
      const Json* const declarations = either(list[i], "functionDeclarations");
      if (declarations == nullptr) continue;
      if (!declarations->is_array() || all.size() + declarations->size() > kDeclarationsMax)
        return body.refuse(
            bad_value(where + ".functionDeclarations",
                      fmt::format("must be a list of at most {}", kDeclarationsMax)));
      for (std::size_t j = 0; j < declarations->size() && !body.failed(); ++j)
        declare(body, (*declarations)[j], fmt::format("{}.functionDeclarations[{}]", where, j),
                all);
    }
    if (!all.empty() && !body.failed()) asked.tools = std::move(all);
  }
  if (auto config = body.object("toolConfig"))
    if (auto calling = config->object("functionCallingConfig")) choose(*calling, asked);
}

}  // namespace quire::gemini
