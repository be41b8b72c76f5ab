#include "server/dialect/anthropic/anthropic_parse.h"

#include <fmt/core.h>

#include <algorithm>

#include "server/dialect/anthropic/anthropic_blocks.h"
#include "server/dialect/shared_fields.h"

namespace quire::anthropic {
namespace {

constexpr std::int64_t kTokensMax = 1 << 30;

// Newer versions of the API and its client have none of these; a server of one's own needs them.
void parse_sampling_fields(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  SamplingOptions& s = asked.sampling;
  s = context.sampling;
  constexpr FloatField kNumbers[] = {{"temperature", 0, 2, &SamplingOptions::temperature}};
  take_numbers(f, kNumbers, s);
  take_top_p(f, "top_p", s);
  take_top_k(f, "top_k", s);
  take_seed(f, asked);
  asked.ignore_eos = f.boolean("ignore_eos").value_or(false);
}

void parse_shape_of_answer(Fields& f, GenerationRequest& asked) {
  auto config = f.object("output_config");
  auto format = config ? config->object("format") : f.object("output_format");
  if (!format) return;
  if (format->text("type", 64).value_or("") != "json_schema")
    return format->refuse("type", "must be json_schema");
  const Json& schema = format->require("schema");
  if (f.failed()) return;
  if (!schema.is_object() && !schema.is_boolean())
    return format->refuse("schema", "must be a JSON schema");
  asked.grammar = {.kind = AnswerGrammar::Kind::json_schema,
                   .schema = schema,
                   .param = config ? "output_config.format" : "output_format"};
}

// Models that can think are told whether to; templates of others do not read it.
void parse_thinking(Fields& f, GenerationRequest& asked) {
  auto thinking = f.object("thinking");
  if (!thinking) return;
  const std::string type = thinking->text("type", 32).value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    return thinking->refuse("type", "must be enabled, disabled or adaptive");
  if (type != "adaptive") asked.template_variables = {{"enable_thinking", type == "enabled"}};
}

void parse_conversation_fields(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  asked.chat = true;
  asked.prompt_field = "messages";
  parse_blocks(f, asked);
  if (!f.failed()) parse_tool_choice(f, asked);
  parse_thinking(f, asked);
  parse_shape_of_answer(f, asked);
  asked.kv.breakpoint_tokens_min = context.cache_min_tokens;
}

// Accepted and without effect here; named so that strict_fields knows them.
void ignore_other_fields(Fields& f) {
  for (const char* name : {"service_tier", "speed", "inference_geo", "container", "betas",
                           "context_management", "mcp_servers", "user_profile_id", "workspace_id",
                           "output_config", "output_format", "cache_control", "system", "tools"})
    f.find(name);
}

}  // namespace

std::optional<ApiError> parse_messages(const Json& body, const ParseContext& context,
                                       GenerationRequest& asked) {
  Fields f(body);
  const Json& model = f.require("model");
  if (!f.failed() && (!model.is_string() || model.get_ref<const std::string&>().empty() ||
                      model.get_ref<const std::string&>().size() > 1024))
    f.refuse("model", "must be a string of 1 to 1024 bytes");
  f.require("max_tokens");
  asked.tokens_max = static_cast<std::uint32_t>(f.integer("max_tokens", 0, kTokensMax).value_or(0));
  if (!f.failed()) asked.model = model.get<std::string>();
  parse_conversation_fields(f, context, asked);
  take_stops(f, "stop_sequences", asked.stop);
  parse_sampling_fields(f, context, asked);
  asked.stream = f.boolean("stream").value_or(false);
  parse_kv(f, context.kv_header, context.kv, asked.kv);
  if (asked.kv.given) asked.priority = asked.kv.priority;
  if (auto diagnostics = f.object("diagnostics"))
    asked.compare_to = diagnostics->text("previous_message_id", 256).value_or("");
  f.object("metadata");
  ignore_other_fields(f);
  return finish_fields(f, context);
}

std::optional<ApiError> parse_conversation(const Json& body, const ParseContext& context,
                                           GenerationRequest& asked) {
  Fields f(body);
  asked.model = f.text("model", 1024).value_or(context.model);
  parse_conversation_fields(f, context, asked);
  asked.tokens_max = 0;
  if (f.failed()) return f.error();
  return std::nullopt;
}

std::optional<ApiError> refused_by_version(const Json& body, std::string_view version) {
  if (version < "2026-10-21" || !body.is_object()) return std::nullopt;  // dates sort
  for (const char* name : {"temperature", "top_p", "top_k"})
    if (body.contains(name) && !body[name].is_null())
      return bad_value(name, fmt::format("is not a parameter of version {}", version),
                       "unsupported_parameter");
  const Json messages = body.value("messages", Json::array());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& m = messages[i];
    if (!m.is_object() || !m.contains("content") || !m["content"].is_array()) continue;
    const bool assistant = m.value("role", Json()) == "assistant";
    for (std::size_t k = 0; k < m["content"].size(); ++k) {
      const Json& b = m["content"][k];
      if (!b.is_object()) continue;
      const std::string where = fmt::format("messages.{}.content.{}", i, k);
      if (assistant && b.value("type", Json()) == "document")
        return bad_value(where, "documents do not belong into messages of the assistant");
      if (const Json cites = b.value("citations", Json());
          !assistant && b.value("type", Json()) == "text" && cites.is_array() && !cites.empty())
        return bad_value(where + ".citations", "must be empty");
    }
  }
  return std::nullopt;
}

}  // namespace quire::anthropic
