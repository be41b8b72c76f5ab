#include "server/dialect/openai/openai_parse.h"

#include <fmt/core.h>

#include <charconv>

#include "server/dialect/openai/openai_messages.h"
#include "server/dialect/shared_fields.h"
#include "server/prompt.h"

namespace quire::openai {
namespace {

constexpr std::int64_t kTokensMax = 1 << 30;
constexpr Nanoseconds kHour = 3'600'000'000'000;

// A text, or a list of them, that the answer is expected to repeat.
void parse_prediction(Fields& f, GenerationRequest& asked) {
  auto prediction = f.object("prediction");
  if (!prediction) return;
  if (prediction->text("type", 64).value_or("content") != "content")
    return prediction->refuse("type", "must be content");
  const Json* content = prediction->find("content");
  if (content == nullptr) return prediction->refuse("content", "is required");
  const Json parts = content->is_string() ? Json::array({*content}) : *content;
  if (!parts.is_array()) return prediction->refuse("content", "must be a string or a list");
  for (const Json& part : parts) {
    const Json* const text = part.is_object() && part.contains("text") ? &part["text"] : &part;
    if (!text->is_string()) return prediction->refuse("content", "must be texts");
    asked.prediction += text->get_ref<const std::string&>();
  }
}

void parse_logit_bias(Fields& f, std::uint32_t vocabulary, GenerationRequest& asked) {
  const Json* bias = f.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() || bias->size() > 1024)
    return f.refuse("logit_bias", "must be an object of at most 1024 tokens");
  for (const auto& [key, value] : bias->items()) {
    std::uint32_t token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token >= vocabulary)
      return f.refuse("logit_bias", fmt::format("'{}' is no token of this model", key));
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100))
      return f.refuse("logit_bias", "must be between -100 and 100");
    asked.sampling.logit_bias.emplace_back(token, value.get<float>());
  }
}

void parse_token_list(Fields& f, std::string_view name, std::uint32_t vocabulary,
                      std::vector<TokenId>& out) {
  const Json* list = f.find(name);
  if (list == nullptr) return;
  if (!list->is_array() || list->size() > 1024)
    return f.refuse(name, "must be a list of at most 1024 tokens");
  for (const Json& t : *list) {
    if (!t.is_number_unsigned() || t.get<std::uint64_t>() >= vocabulary)
      return f.refuse(name, "must hold tokens of this model");
    out.push_back(t.get<TokenId>());
  }
}

void parse_sampling(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  SamplingOptions& s = asked.sampling;
  // Beams rank by the model's own probabilities.
  const bool beams = f.boolean("use_beam_search").value_or(false);
  s = beams ? SamplingOptions{} : context.sampling;
  constexpr FloatField kNumbers[] = {
      {"temperature", 0, 2, &SamplingOptions::temperature},
      {"min_p", 0, 1, &SamplingOptions::min_p},
      {"typical_p", 0, 1, &SamplingOptions::typical_p},
      {"repetition_penalty", 0.01, 100, &SamplingOptions::repetition_penalty},
      {"presence_penalty", -2, 2, &SamplingOptions::presence_penalty},
      {"frequency_penalty", -2, 2, &SamplingOptions::frequency_penalty}};
  take_numbers(f, kNumbers, s);
  take_top_p(f, "top_p", s);
  take_top_k(f, "top_k", s);
  parse_logit_bias(f, context.vocabulary, asked);
  take_seed(f, asked);
  if (const auto mode = f.text("logprobs_mode", 32); mode && *mode != "raw")
    f.refuse("logprobs_mode", "must be raw: before temperature and top_p", "unsupported_parameter");
}

// cache_salt, prompt_cache_key, prompt_cache_options, prompt_cache_retention.
void parse_cache_fields(Fields& body, bool has_breakpoint, GenerationRequest& asked) {
  if (const auto salt = body.text("cache_salt", 4096)) {
    check_salt(body, "cache_salt", *salt);
    if (asked.kv.policy.salt.empty()) asked.kv.policy.salt = *salt;
  }
  if (const auto key = body.text("prompt_cache_key", 128)) asked.family = *key;
  if (const auto retention = body.text("prompt_cache_retention", 32)) {
    if (*retention == "24h")
      asked.kv.policy.ttl = std::max(asked.kv.policy.ttl, 24 * kHour);
    else if (*retention == "in_memory" || *retention == "in-memory")
      asked.kv.policy.disk = asked.kv.policy.remote = false;
    else
      body.refuse("prompt_cache_retention", "must be in_memory or 24h");
  }
  if (auto options = body.object("prompt_cache_options")) {
    const std::string mode = options->text("mode", 16).value_or("implicit");
    if (mode != "implicit" && mode != "explicit")
      options->refuse("mode", "must be implicit or explicit");
    if (const auto ttl = options->duration("ttl"))
      asked.kv.policy.ttl = std::max(asked.kv.policy.ttl, *ttl);
    if (mode == "explicit" && !has_breakpoint) {  // neither reads nor leaves anything
      asked.kv.policy.reuse = false;
      asked.kv.policy.write = KvWrite::none;
    }
  }
}

}  // namespace

void parse_common(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  asked.model = f.text("model", 1024).value_or("");
  if (asked.model.empty()) asked.model = context.model;
  parse_sampling(f, context, asked);
  take_stops(f, "stop", asked.stop);
  parse_prediction(f, asked);
  asked.n = static_cast<std::uint32_t>(f.integer("n", 1, 16).value_or(1));
  asked.beam_search = f.boolean("use_beam_search").value_or(false);
  asked.length_penalty = static_cast<float>(f.number("length_penalty", -10, 10).value_or(1));
  asked.best_of = asked.n;
  if (const auto best = f.integer("best_of", 1, 16)) {
    asked.best_of = static_cast<std::uint32_t>(*best);
    if (asked.best_of < asked.n) f.refuse("best_of", "must be at least n");
  }
  asked.tokens_min = static_cast<std::uint32_t>(f.integer("min_tokens", 0, kTokensMax).value_or(0));
  asked.ignore_eos = f.boolean("ignore_eos").value_or(false);
  parse_token_list(f, "stop_token_ids", context.vocabulary, asked.stop_tokens);
  asked.include_stop = f.boolean("include_stop_str_in_output").value_or(false);
  asked.skip_special = f.boolean("skip_special_tokens").value_or(true);
  asked.truncate_prompt = f.integer("truncate_prompt_tokens", -1, kTokensMax).value_or(0);
  asked.echo = f.boolean("echo").value_or(false);
  asked.return_token_ids = f.boolean("return_token_ids").value_or(false);
  if (const auto count = f.integer("prompt_logprobs", 0, 20))
    asked.prompt_logprobs = static_cast<std::int32_t>(*count);
  if (const Json* words = f.find("bad_words")) {
    if (!words->is_array() || words->size() > 128)
      f.refuse("bad_words", "must be a list of at most 128");
    else
      for (const Json& w : *words) {
        if (!w.is_string() || w.get_ref<const std::string&>().empty() ||
            w.get_ref<const std::string&>().size() > 256) {
          f.refuse("bad_words", "must hold strings of 1 to 256 bytes");
          break;
        }
        asked.bad_words.push_back(w.get<std::string>());
      }
  }

  asked.stream = f.boolean("stream").value_or(false);
  if (auto options = f.object("stream_options")) {
    if (!asked.stream) f.refuse("stream_options", "needs stream: true");
    asked.include_usage = options->boolean("include_usage").value_or(false);
    asked.continuous_usage =
        options->boolean("continuous_usage_stats").value_or(false) && asked.include_usage;
  }

  parse_kv(f, context.kv_header, context.kv, asked.kv);
  asked.kv.breakpoint_tokens_min = context.cache_min_tokens;
  parse_cache_fields(f, !asked.breakpoints.empty(), asked);
  // In vLLM's sense lower is earlier; in ours higher is more important.
  if (const auto priority = f.integer("priority", -1'000'000, 1'000'000))
    asked.priority = static_cast<std::int32_t>(std::clamp<std::int64_t>(-*priority, -100, 100));
  else if (asked.kv.given)
    asked.priority = asked.kv.priority;
  if (const auto tier = f.text("service_tier", 32)) {
    if (*tier == "priority" || *tier == "fast") {
      asked.extras["service_tier"] = "priority";
      asked.priority = 10;
    } else if (*tier == "flex") {
      asked.extras["service_tier"] = "flex";
      asked.priority = -10;
    }
  }
  f.text("request_id", 128);  // x-request-id is what names a request
  if (const Json* metadata = f.find("metadata"))
    if (!metadata->is_object() || metadata->size() > 16)
      f.refuse("metadata", "must be an object of at most 16 keys");
  if (const Json* transfer = f.find("kv_transfer_params"))
    if (transfer->is_object() && transfer->value("do_remote_decode", Json(false)) == true)
      f.refuse(not_implemented("kv_transfer_params.do_remote_decode", "kv_transfer_params"));
}

namespace {

// One of four fields that say what the answer must look like; an empty name is not looked for.
void parse_shape(Fields& f, std::string_view json, std::string_view regex, std::string_view rules,
                 std::string_view choice, AnswerGrammar& g) {
  const auto is = [&](AnswerGrammar::Kind kind, std::string_view name) {
    if (g.kind != AnswerGrammar::Kind::none)
      return f.refuse(name, "cannot be combined with another shape of the answer");
    g.kind = kind;
    if (g.param.empty()) g.param = std::string(name);
  };
  if (const Json* schema = f.find(json)) {
    is(AnswerGrammar::Kind::json_schema, json);
    g.schema = *schema;
    if (schema->is_string()) {
      auto parsed = parse_json(schema->get_ref<const std::string&>(), kRequestJson);
      if (!parsed.ok()) return f.refuse(json, "must be a JSON schema");
      g.schema = std::move(parsed.value());
    }
    if (!g.schema.is_object() && !g.schema.is_boolean())
      return f.refuse(json, "must be a JSON schema");
  }
  if (!regex.empty())
    if (auto text = f.text(regex, 64 << 10)) {
      is(AnswerGrammar::Kind::regex, regex);
      g.text = std::move(*text);
    }
  if (auto text = f.text(rules, 256 << 10); text && !text->empty()) {
    is(AnswerGrammar::Kind::ebnf, rules);
    g.text = std::move(*text);
  }
  if (choice.empty()) return;
  if (const Json* choices = f.find(choice)) {
    is(AnswerGrammar::Kind::choice, choice);
    if (!choices->is_array() || choices->empty() || choices->size() > 1024)
      return f.refuse(choice, "must be a list of 1 to 1024 strings");
    for (const Json& c : *choices) {
      if (!c.is_string()) return f.refuse(choice, "must be strings");
      g.choices.push_back(c.get<std::string>());
    }
  }
}

void parse_grammar(Fields& f, GenerationRequest& asked) {
  AnswerGrammar& g = asked.grammar;
  if (auto format = f.object("response_format")) {
    g.param = "response_format";
    const std::string type = format->text("type", 64).value_or("");
    if (type == "json_object") {
      g.kind = AnswerGrammar::Kind::json_object;
    } else if (type == "json_schema") {
      auto schema = format->object("json_schema");
      if (!schema && !f.failed())
        return format->refuse("json_schema", "is required", "missing_required_parameter");
      if (!schema) return;
      g.kind = AnswerGrammar::Kind::json_schema;
      g.strict = schema->boolean("strict").value_or(false);
      if (const Json* s = schema->find("schema")) {
        if (!s->is_object() && !s->is_boolean()) schema->refuse("schema", "must be a JSON schema");
        g.schema = *s;
      } else {
        schema->refuse("schema", "is required", "missing_required_parameter");
      }
    } else if (type != "text") {
      format->refuse("type", "must be text, json_object or json_schema");
    }
  }
  if (auto outputs = f.object("structured_outputs")) {
    g = {.param = "structured_outputs"};
    parse_shape(*outputs, "json", "regex", "grammar", "choice", g);
    if (g.kind == AnswerGrammar::Kind::none && outputs->boolean("json_object").value_or(false))
      g.kind = AnswerGrammar::Kind::json_object;
  }
  // What older clients of vLLM send, and llama-server's.
  AnswerGrammar other;
  parse_shape(f, "guided_json", "guided_regex", "guided_grammar", "guided_choice", other);
  if (other.kind == AnswerGrammar::Kind::none)
    parse_shape(f, "json_schema", {}, "grammar", {}, other);
  if (other.kind == AnswerGrammar::Kind::none) return;
  if (g.kind != AnswerGrammar::Kind::none)
    return f.refuse(other.param, "cannot be combined with " + g.param);
  g = std::move(other);
}

void parse_template_fields(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  asked.add_generation_prompt = f.boolean("add_generation_prompt").value_or(true);
  asked.continue_final_message = f.boolean("continue_final_message").value_or(false);
  if (asked.continue_final_message && f.find("add_generation_prompt") != nullptr &&
      asked.add_generation_prompt)
    f.refuse("continue_final_message", "cannot be combined with add_generation_prompt");
  if (asked.continue_final_message) asked.add_generation_prompt = false;
  if (const auto source = f.text("chat_template", 256 << 10)) {
    if (!context.trust_templates)
      f.refuse({.status = 403,
                .message = "requests may bring no chat_template here (--trust-request-templates)",
                .type = "permission_error",
                .code = "chat_template_not_trusted",
                .param = "chat_template"});
    asked.chat_template = *source;
  }
  if (auto variables = f.object("chat_template_kwargs"))
    asked.template_variables = *f.find("chat_template_kwargs");
}

// Accepted and without effect here; named so that strict_fields knows them.
void ignore_fields(Fields& f) {
  for (const char* name : {"user", "safety_identifier", "store", "reasoning_effort", "verbosity",
                           "web_search_options", "moderation", "functions", "function_call",
                           "documents", "add_special_tokens", "spaces_between_special_tokens",
                           "include_reasoning", "id_slot", "cache_prompt", "mm_processor_kwargs"})
    f.find(name);
}

std::optional<ApiError> finish(Fields& f, const ParseContext& context,
                               const GenerationRequest& asked) {
  if (asked.beam_search && asked.stream) f.refuse("use_beam_search", "cannot be streamed");
  if (asked.best_of > asked.n && asked.stream) f.refuse("best_of", "cannot be streamed");
  ignore_fields(f);
  return finish_fields(f, context);
}

}  // namespace

std::optional<ApiError> parse_chat(const Json& body, const ParseContext& context,
                                   GenerationRequest& asked) {
  Fields f(body);
  asked.chat = true;
  asked.prompt_field = "messages";
  parse_messages(f, asked);
  parse_tools(f, asked);
  parse_common(f, context, asked);
  parse_template_fields(f, context, asked);
  parse_grammar(f, asked);
  if (const auto max = f.integer("max_completion_tokens", 1, kTokensMax))
    asked.tokens_max = static_cast<std::uint32_t>(*max);
  if (const auto max = f.integer("max_tokens", 1, kTokensMax); max && !asked.tokens_max)
    asked.tokens_max = static_cast<std::uint32_t>(*max);
  asked.logprobs = f.boolean("logprobs").value_or(false);
  if (const auto top = f.integer("top_logprobs", 0, 20)) {
    if (!asked.logprobs) f.refuse("top_logprobs", "needs logprobs: true");
    asked.top_logprobs = static_cast<std::uint32_t>(*top);
  }
  if (const Json* modalities = f.find("modalities"))
    if (!modalities->is_array() || *modalities != Json::array({"text"}))
      f.refuse("modalities", "this model answers with text only");
  if (f.find("audio")) f.refuse("audio", "this model answers with text only");
  return finish(f, context, asked);
}

std::optional<ApiError> parse_completion(const Json& body, const ParseContext& context,
                                         GenerationRequest& asked) {
  Fields f(body);
  if (f.find("prompt_embeds")) f.refuse("prompt_embeds", "is not taken here");
  const Json& prompt = f.require("prompt");
  if (!f.failed())
    if (auto error = parse_prompts(prompt, context.vocabulary, asked)) f.refuse(std::move(*error));
  parse_common(f, context, asked);
  parse_grammar(f, asked);
  asked.tokens_max =
      static_cast<std::uint32_t>(f.integer("max_tokens", 0, kTokensMax).value_or(16));
  if (asked.tokens_max == 0 && !asked.echo) f.refuse("max_tokens", "may be 0 only with echo");
  if (const Json* logprobs = f.find("logprobs"); logprobs != nullptr && !logprobs->is_boolean()) {
    if (const auto count = f.integer("logprobs", 0, 20)) {
      asked.logprobs = true;
      asked.top_logprobs = static_cast<std::uint32_t>(*count);
    }
  } else if (logprobs != nullptr && *logprobs == true) {
    asked.logprobs = true;
  }
  if (asked.echo && asked.logprobs)
    asked.prompt_logprobs =
        std::max(asked.prompt_logprobs, static_cast<std::int32_t>(asked.top_logprobs));
  if (const auto suffix = f.text("suffix", 32 << 20)) asked.suffix = *suffix;
  asked.parse_special = f.boolean("parse_special").value_or(context.parse_special);
  if (asked.parse_special && !context.parse_special)
    f.refuse("parse_special", "is off here (--no-parse-special)");
  asked.add_special = f.boolean("add_special_tokens").value_or(true);
  return finish(f, context, asked);
}

std::optional<ApiError> parse_conversation(const Json& body, const ParseContext& context,
                                           GenerationRequest& asked) {
  Fields f(body);
  asked.chat = true;
  asked.prompt_field = "messages";
  parse_messages(f, asked);
  parse_tools(f, asked);
  parse_template_fields(f, context, asked);
  if (f.failed()) return f.error();
  return std::nullopt;
}

}  // namespace quire::openai
