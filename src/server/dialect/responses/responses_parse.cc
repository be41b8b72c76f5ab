#include "server/dialect/responses/responses_parse.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "server/dialect/openai/openai_messages.h"
#include "server/dialect/openai/openai_parse.h"
#include "server/dialect/responses/items.h"
#include "server/dialect/responses/turn.h"
#include "server/dialect/shared_fields.h"

namespace quire::responses {
namespace {

constexpr std::int64_t kOutputMax = 1 << 30;
constexpr std::size_t kInputMax = 4096;  // items of one request

// A body that is being read. Order matters: messages, then what openai::parse_common() reads.
struct Reading {
  Fields& f;
  const ParseContext& context;
  GenerationRequest& asked;
  Turn& turn;
  std::shared_ptr<ResponseStore> store;
  std::string referred_id = {};
  Json referred = nullptr;

  std::shared_ptr<const StoredResponse> find(const std::string& id) const {
    return store ? store->find(context.kv.tenant, id) : nullptr;
  }
  Json find_item(const std::string& id);
  void echo(const char* name, Json otherwise = nullptr);

  void refuse_what_is_not_there();
  void read_input();
  void read_tools();
  void read_text();
  void read_include();
  void read_cache_options();
  void read_rest();
};

// References often name items of one response: the last one that was read is remembered.
Json Reading::find_item(const std::string& id) {
  const std::string of = response_of_item(id);
  if (of != referred_id) {
    const auto stored = find(of);
    referred = stored ? read_stored(*stored) : Json();
    referred_id = of;
  }
  if (referred.is_null()) return nullptr;
  for (const Json* list : {&referred["items"], &referred["response"]["output"]})
    for (const Json& item : *list)
      if (item.is_object() && item.value("id", Json()) == id) return item;
  return nullptr;
}

void Reading::echo(const char* name, Json otherwise) {
  const Json* const given = f.find(name);
  turn.echo[name] = given != nullptr ? *given : std::move(otherwise);
}

void Reading::refuse_what_is_not_there() {
  if (f.boolean("background").value_or(false))
    f.refuse("background", "this server answers while the client waits", "unsupported_parameter");
  for (const char* name : {"conversation", "prompt", "context_management"})
    if (f.find(name) != nullptr)
      f.refuse(name, "is not available here; use previous_response_id or send all items",
               "unsupported_parameter");
}

void Reading::read_input() {
  ItemReader reader{.body = f,
                    .response_id = context.answer_id,
                    .referred = [this](const std::string& id) { return find_item(id); }};
  if (const auto instructions = f.text("instructions", 32 << 20))
    reader.say("system", *instructions, "instructions");
  if (const auto previous = f.text("previous_response_id", 256)) {
    const auto stored = find(*previous);
    const Json before = stored ? read_stored(*stored) : Json();
    if (before.is_null())
      return f.refuse("previous_response_id",
                      "there is no response '" + *previous +
                          "': it was not stored, was deleted, or has expired",
                      "previous_response_not_found");
    for (const Json* list : {&before["items"], &before["response"]["output"]})
      for (const Json& item : *list) reader.read(item, "previous_response_id");
  }
  const Json& input = f.require("input");
  if (f.failed()) return;
  if (input.is_string()) {
    reader.read({{"type", "message"}, {"role", "user"}, {"content", input}}, "input");
  } else if (input.is_array() && input.size() <= kInputMax) {
    for (std::size_t i = 0; i < input.size() && !f.failed(); ++i) {
      reader.read(input[i], fmt::format("input[{}]", i));
      if (auto error = stopped()) f.refuse(std::move(*error));
    }
  } else {
    return f.refuse("input",
                    fmt::format("must be a string or a list of at most {} items", kInputMax));
  }
  if (reader.messages.empty() && !f.failed()) f.refuse("input", "must not be empty");
  openai::read_messages(
      f, reader.messages, [&](std::size_t i) { return reader.names[i]; }, asked);
  turn.item_count = reader.items.size();
  turn.items = dump(reader.items);
}

// {"type": "function", "name": ...} becomes what chat has: {"type": "function", "function": {...}}.
void Reading::read_tools() {
  Json body = Json::object(), tools = Json::array();
  if (const Json* given = f.find("tools")) {
    if (!given->is_array()) return f.refuse("tools", "must be a list");
    for (std::size_t i = 0; i < given->size(); ++i) {
      const Json& tool = (*given)[i];
      const std::string where = fmt::format("tools[{}]", i);
      if (!tool.is_object() || tool.value("type", Json()) != "function")
        return f.refuse(bad_value(where + ".type",
                                  "must be function: this server has no tools of its own",
                                  "unsupported_parameter"));
      if (!tool.contains("name") || !tool["name"].is_string() ||
          tool["name"].get_ref<const std::string&>().empty())
        return f.refuse(bad_value(where + ".name", "must be 1 to 128 characters"));
      Json function = Json::object();
      for (const auto& [key, value] : tool.items())
        if (key != "type" && !value.is_null()) function[key] = value;
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    if (!tools.empty()) body["tools"] = std::move(tools);
  }
  for (const char* name : {"tool_choice", "parallel_tool_calls"})
    if (const Json* given = f.find(name)) body[name] = *given;
  Fields chat(body);
  openai::parse_tools(chat, asked);
  if (chat.failed()) f.refuse(chat.error());
}

void Reading::read_text() {
  turn.echo["text"] = {{"format", {{"type", "text"}}}};
  auto text = f.object("text");
  if (!text) return;
  if (const auto verbosity = text->text("verbosity", 16))
    turn.echo["text"]["verbosity"] = *verbosity;
  auto format = text->object("format");
  if (!format) return;
  turn.echo["text"]["format"] = *text->find("format");
  AnswerGrammar& g = asked.grammar;
  g.param = "text.format";
  const std::string type = format->text("type", 64).value_or("");
  if (type == "json_object") {
    g.kind = AnswerGrammar::Kind::json_object;
  } else if (type == "json_schema") {
    const Json& schema = format->require("schema");
    if (format->failed()) return;
    if (!schema.is_object() && !schema.is_boolean())
      return format->refuse("schema", "must be a JSON schema");
    g.kind = AnswerGrammar::Kind::json_schema;
    g.strict = format->boolean("strict").value_or(false);
    g.schema = schema;
  } else if (type != "text") {
    format->refuse("type", "must be text, json_object or json_schema");
  }
}

void Reading::read_include() {
  // All but the first are about tools that are not here, or about reasoning that is not encrypted.
  static constexpr std::array kIncludes = {"message.output_text.logprobs",
                                           "reasoning.encrypted_content",
                                           "file_search_call.results",
                                           "web_search_call.results",
                                           "web_search_call.action.sources",
                                           "message.input_image.image_url",
                                           "computer_call_output.output.image_url",
                                           "code_interpreter_call.outputs"};
  if (const Json* include = f.find("include")) {
    if (!include->is_array()) return f.refuse("include", "must be a list");
    for (const Json& what : *include) {
      if (std::ranges::none_of(kIncludes, [&](const char* name) { return what == name; }))
        return f.refuse("include", "may hold message.output_text.logprobs");
      if (what == kIncludes.front()) asked.logprobs = true;
    }
  }
  const auto top = f.integer("top_logprobs", 0, 20);
  if (top && asked.logprobs) asked.top_logprobs = static_cast<std::uint32_t>(*top);
}

// openai::parse_common() reads mode and ttl.
void Reading::read_cache_options() {
  Json shown{{"mode", "implicit"}, {"ttl", "30m"}};
  if (auto options = f.object("prompt_cache_options")) {
    for (const char* name : {"mode", "ttl"})
      if (const Json* given = options->find(name)) shown[name] = *given;
    turn.prewarm = options->boolean("prewarm").value_or(false);
    if (const auto id = options->text("comparison_response_id", 256)) {
      turn.compares = true;
      if (find(*id)) asked.compare_to = *id;
      shown["comparison_response_id"] = *id;
    }
  }
  turn.echo["prompt_cache_options"] = std::move(shown);
}

void Reading::read_rest() {
  if (const auto max = f.integer("max_output_tokens", 1, kOutputMax))
    asked.tokens_max = static_cast<std::uint32_t>(*max);
  if (turn.prewarm) asked.tokens_max = 0;
  const std::string truncation = f.text("truncation", 16).value_or("disabled");
  if (truncation != "disabled" && truncation != "auto")
    f.refuse("truncation", "must be disabled or auto");
  asked.drop_oldest = truncation == "auto";
  if (asked.n != 1 || asked.best_of != 1 || asked.beam_search)
    f.refuse("n", "a response has one answer", "unsupported_parameter");
  if (asked.echo || asked.prompt_logprobs >= 0)
    f.refuse(asked.echo ? "echo" : "prompt_logprobs", "is not available for responses",
             "unsupported_parameter");
  asked.whole_at_end = true;
  asked.include_usage = asked.return_token_ids = false;
  if (const Json* metadata = f.find("metadata"); metadata != nullptr && metadata->is_object())
    for (const auto& [key, value] : metadata->items())
      if (key.size() > 64 || !value.is_string() ||
          value.get_ref<const std::string&>().size() > 2048)
        f.refuse("metadata", "must have keys of at most 64 and strings of at most 512 characters");
  Json reasoning{{"effort", nullptr}, {"summary", nullptr}};
  if (auto given = f.object("reasoning"))
    for (const char* name : {"effort", "summary"})
      if (const auto value = given->text(name, 32)) reasoning[name] = *value;
  turn.echo["reasoning"] = std::move(reasoning);
  const auto as_json = [](float value) { return Json(std::stod(fmt::format("{}", value))); };
  turn.echo["temperature"] = as_json(asked.sampling.temperature);
  turn.echo["top_p"] = as_json(asked.sampling.top_p);
  turn.echo["service_tier"] = asked.extras.value("service_tier", "default");
  turn.echo["background"] = false;
  turn.echo["truncation"] = truncation;
  for (const char* name :
       {"instructions", "max_output_tokens", "max_tool_calls", "previous_response_id",
        "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"})
    echo(name);
  echo("metadata", Json::object());
  echo("parallel_tool_calls", true);
  echo("tool_choice", "auto");
  echo("tools", Json::array());
  echo("top_logprobs", 0);
  for (const char* ignored : {"moderation", "image", "access_programs"}) f.find(ignored);
}

std::optional<ApiError> read_body(const Json& body, const ParseContext& context, bool store,
                                  GenerationRequest& asked) {
  Fields f(body);
  const auto turn = std::make_shared<Turn>();
  Reading r{f, context, asked, *turn, std::static_pointer_cast<ResponseStore>(context.state)};
  asked.chat = true;
  asked.prompt_field = "input";
  asked.notes = turn;
  r.refuse_what_is_not_there();
  r.read_input();
  r.read_tools();
  openai::parse_common(f, context, asked);
  r.read_text();
  r.read_include();
  r.read_cache_options();
  r.read_rest();
  turn->tenant = context.kv.tenant;
  const bool wants = f.boolean("store").value_or(true);
  if (wants && store) turn->store = r.store;
  turn->echo["store"] = turn->store != nullptr;
  return finish_fields(f, context);
}

}  // namespace

std::optional<ApiError> parse_response(const Json& body, const ParseContext& context,
                                       GenerationRequest& asked) {
  return read_body(body, context, true, asked);
}

std::optional<ApiError> parse_input(const Json& body, const ParseContext& context,
                                    GenerationRequest& asked) {
  return read_body(body, context, false, asked);
}

}  // namespace quire::responses
