#include "server/dialect/ollama/ollama_parse.h"

#include <fmt/core.h>

#include <array>

#include "server/dialect/openai/openai_messages.h"
#include "server/dialect/shared_fields.h"
#include "server/embedding.h"
#include "server/prompt.h"

namespace quire::ollama {
namespace {

constexpr std::size_t kMessagesMax = 4096;
constexpr std::int64_t kCountMax = 1 << 30;

void refuse_images(Fields& f, const Json& holder, const std::string& where) {
  const auto at = holder.find("images");
  if (at != holder.end() && !at->is_null() && *at != Json::array())
    f.refuse(bad_value(where, "this model takes text, not images"));
}

// Calls have their arguments as an object here.
Json calls_of(Fields& f, const Json& list, const std::string& where) {
  Json out = Json::array();
  if (!list.is_array()) f.refuse(bad_value(where, "must be a list"));
  for (std::size_t i = 0; list.is_array() && i < list.size() && !f.failed(); ++i) {
    const Json function =
        list[i].is_object() ? list[i].value("function", Json::object()) : Json::object();
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      f.refuse(bad_value(fmt::format("{}[{}].function.name", where, i), "must be a string"));
      break;
    }
    out.push_back({{"type", "function"},
                   {"function",
                    {{"name", function["name"]},
                     {"arguments", function.value("arguments", Json::object())}}}});
  }
  return out;
}

void add_message(Fields& f, const Json& m, const std::string& where, Json& messages) {
  if (!m.is_object()) return f.refuse(bad_value(where, "must be an object"));
  const auto text = [&m](const char* name) {
    return m.contains(name) && m[name].is_string() ? m[name].get<std::string>() : std::string();
  };
  const std::string role = text("role");
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    return f.refuse(bad_value(where + ".role", "must be system, user, assistant or tool"));
  if (m.contains("content") && !m["content"].is_null() && !m["content"].is_string())
    return f.refuse(bad_value(where + ".content", "must be a string"));
  refuse_images(f, m, where + ".images");
  Json out{{"role", role}, {"content", text("content")}};
  if (role == "assistant" && m.contains("tool_calls") && !m["tool_calls"].is_null() &&
      m["tool_calls"] != Json::array())
    out["tool_calls"] = calls_of(f, m["tool_calls"], where + ".tool_calls");
  if (role == "assistant" && !text("thinking").empty()) out["reasoning_content"] = text("thinking");
  if (role == "tool") {
    const std::string name = text(m.contains("tool_name") ? "tool_name" : "name");
    if (!name.empty()) out["name"] = name;
  }
  messages.push_back(std::move(out));
}

void parse_messages(Fields& f, GenerationRequest& asked) {
  const Json& messages = f.require("messages");
  if (f.failed()) return;
  if (!messages.is_array() || messages.empty() || messages.size() > kMessagesMax)
    return f.refuse("messages", fmt::format("must be a list of 1 to {} messages", kMessagesMax));
  for (std::size_t i = 0; i < messages.size() && !f.failed(); ++i)
    add_message(f, messages[i], fmt::format("messages[{}]", i), asked.messages);
}

void parse_options(Fields& options, GenerationRequest& asked) {
  constexpr FloatField kNumbers[] = {
      {"temperature", 0, 2, &SamplingOptions::temperature},
      {"min_p", 0, 1, &SamplingOptions::min_p},
      {"typical_p", 0, 1, &SamplingOptions::typical_p},
      {"repeat_penalty", 0.01, 100, &SamplingOptions::repetition_penalty},
      {"presence_penalty", -2, 2, &SamplingOptions::presence_penalty},
      {"frequency_penalty", -2, 2, &SamplingOptions::frequency_penalty}};
  take_numbers(options, kNumbers, asked.sampling);
  take_top_p(options, "top_p", asked.sampling);
  take_top_k(options, "top_k", asked.sampling);
  take_seed(options, asked, true);
  // -1 and -2: as many as there is room for.
  if (const auto tokens = options.integer("num_predict", -2, kCountMax); tokens && *tokens >= 0)
    asked.tokens_max = static_cast<std::uint32_t>(*tokens);
  take_stops(options, "stop", asked.stop);
  // How a model is loaded was decided when this server began; the others have no effect here.
  for (const char* name :
       {"num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram",
        "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "tfs_z", "mirostat",
        "mirostat_tau", "mirostat_eta", "repeat_last_n", "penalize_newline"})
    options.find(name);
}

void parse_answer_format(Fields& f, GenerationRequest& asked) {
  const Json* const format = f.find("format");
  if (format == nullptr || *format == "") return;
  asked.grammar.param = "format";
  if (*format == "json") {
    asked.grammar.kind = AnswerGrammar::Kind::json_object;
  } else if (format->is_object()) {
    asked.grammar.kind = AnswerGrammar::Kind::json_schema;
    asked.grammar.schema = *format;
  } else {
    f.refuse("format", "must be \"json\" or a JSON schema");
  }
}

// What both kinds of bodies have.
void parse_shared(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  asked.model = f.text("model", 1024).value_or("");
  if (asked.model.empty()) asked.model = f.text("name", 1024).value_or("");
  if (asked.model.empty()) asked.model = context.model;
  asked.stream = f.boolean("stream").value_or(true);
  asked.sampling = context.sampling;
  if (auto options = f.object("options")) {
    parse_options(*options, asked);
    if (context.strict_fields && !f.failed()) options->refuse_unknown();
  }
  parse_answer_format(f, asked);
  if (const Json* think = f.find("think")) {
    if (!think->is_boolean() && !think->is_string())
      f.refuse("think", "must be true, false or a level");
    asked.template_variables = {{"enable_thinking", *think != false}};
  }
  asked.logprobs = f.boolean("logprobs").value_or(false);
  if (const auto top = f.integer("top_logprobs", 0, 20)) {
    if (!asked.logprobs && *top > 0) f.refuse("top_logprobs", "needs logprobs: true");
    asked.top_logprobs = static_cast<std::uint32_t>(*top);
  }
  parse_kv(f, context.kv_header, context.kv, asked.kv);
  if (asked.kv.given) asked.priority = asked.kv.priority;
  for (const char* name : {"keep_alive", "truncate", "shift"}) f.find(name);
}

// Tokens of an earlier answer's `context`.
void parse_context_tokens(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  const Json* const tokens = f.find("context");
  if (tokens == nullptr) return;
  if (!tokens->is_array()) return f.refuse("context", "must be a list of tokens");
  for (const Json& t : *tokens) {
    if (!t.is_number_unsigned() || t.get<std::uint64_t>() >= context.vocabulary)
      return f.refuse("context", "must hold tokens of this model");
    asked.before.push_back(t.get<TokenId>());
  }
}

void parse_template(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  const auto source = f.text("template", 256 << 10);
  if (!source || source->empty()) return;
  if (!context.trust_templates)
    f.refuse({.status = 403,
              .message = "requests may bring no template here (--trust-request-templates)",
              .type = "permission_error",
              .code = "chat_template_not_trusted",
              .param = "template"});
  asked.chat_template = *source;
}

}  // namespace

bool asks_to_load(const Json& body) {
  if (!body.is_object()) return false;
  for (const char* name : {"messages", "prompt", "suffix"}) {
    const auto at = body.find(name);
    if (at != body.end() && !at->is_null() && *at != "" && *at != Json::array()) return false;
  }
  return true;
}

std::optional<ApiError> parse_chat(const Json& body, const ParseContext& context,
                                   GenerationRequest& asked) {
  Fields f(body);
  asked.chat = true;
  asked.prompt_field = "messages";
  parse_messages(f, asked);
  openai::parse_tools(f, asked);
  parse_shared(f, context, asked);
  return finish_fields(f, context);
}

std::optional<ApiError> parse_generate(const Json& body, const ParseContext& context,
                                       GenerationRequest& asked) {
  constexpr std::size_t kTextMax = 32 << 20;
  Fields f(body);
  parse_shared(f, context, asked);
  const std::string prompt = f.text("prompt", kTextMax).value_or("");
  const auto suffix = f.text("suffix", kTextMax);
  const auto system = f.text("system", kTextMax);
  const bool raw = f.boolean("raw").value_or(false);
  if (body.is_object()) refuse_images(f, body, "images");
  f.find("images");
  parse_template(f, context, asked);
  parse_context_tokens(f, context, asked);
  if (raw || (suffix && !suffix->empty())) {
    asked.prompts.push_back({.text = prompt});
    asked.parse_special = context.parse_special;
    if (suffix && !suffix->empty()) asked.suffix = *suffix;
    if (!asked.before.empty()) f.refuse("context", "cannot be combined with raw or suffix");
  } else {
    asked.chat = true;
    if (system && !system->empty())
      asked.messages.push_back({{"role", "system"}, {"content", *system}});
    asked.messages.push_back({{"role", "user"}, {"content", prompt}});
    asked.return_token_ids = true;  // for the context of the answer
  }
  asked.extras["generate"] = true;
  return finish_fields(f, context);
}

std::optional<ApiError> parse_conversation(const Json& body, const ParseContext&,
                                           GenerationRequest& asked) {
  Fields f(body);
  asked.chat = true;
  asked.prompt_field = "messages";
  parse_messages(f, asked);
  openai::parse_tools(f, asked);
  if (f.failed()) return f.error();
  return std::nullopt;
}

std::optional<ApiError> parse_embed(const Json& body, const ParseContext& context,
                                    GenerationRequest& asked) {
  Fields f(body);
  const bool old = !body.contains("input");  // /api/embeddings: one text, not normalized
  asked.prompt_field = old ? "prompt" : "input";
  asked.model = f.text("model", 1024).value_or("");
  if (asked.model.empty()) asked.model = context.model;
  const Json& input = f.require(asked.prompt_field);
  if (!f.failed())
    if (auto error = parse_prompts(input, context.vocabulary, asked)) f.refuse(std::move(*error));
  asked.tokens_max = 0;
  asked.embedding = {.pooling = context.pooling, .normalize = !old};
  asked.embedding.dimensions =
      static_cast<std::uint32_t>(f.integer("dimensions", 1, context.hidden).value_or(0));
  asked.extras["one"] = old;
  asked.extras["cut"] = f.boolean("truncate").value_or(true);
  if (auto problem = too_many_numbers(asked, context.hidden, false))
    f.refuse(asked.prompt_field, *problem);
  if (auto options = f.object("options")) {
    GenerationRequest ignored;
    parse_options(*options, ignored);
  }
  parse_kv(f, context.kv_header, context.kv, asked.kv);
  if (asked.kv.given) asked.priority = asked.kv.priority;
  // States of a mean cannot come from the cache, so its blocks would only take the room of others.
  else if (context.pooling != Pooling::last)
    asked.kv.policy.write = KvWrite::none;
  f.find("keep_alive");
  return finish_fields(f, context);
}

}  // namespace quire::ollama
