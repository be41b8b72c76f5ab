#include "server/dialect/gemini/gemini_parse.h"

#include <fmt/core.h>

#include "server/dialect/gemini/gemini_contents.h"
#include "server/dialect/gemini/gemini_schema.h"
#include "server/dialect/shared_fields.h"
#include "server/embedding.h"

namespace quire::gemini {
namespace {

constexpr std::int64_t kOutputTokensMax = 1 << 30;
constexpr const char* kCachedFields[] = {"systemInstruction", "tools", "toolConfig"};

void parse_numbers(Fields& config, GenerationRequest& asked) {
  constexpr FloatField kNumbers[] = {
      {"temperature", 0, 2, &SamplingOptions::temperature},
      {"presencePenalty", -2, 2, &SamplingOptions::presence_penalty},
      {"frequencyPenalty", -2, 2, &SamplingOptions::frequency_penalty}};
  take_numbers(config, kNumbers, asked.sampling);
  take_top_p(config, "topP", asked.sampling);
  take_top_k(config, "topK", asked.sampling);
  take_seed(config, asked);
  asked.n = static_cast<std::uint32_t>(config.integer("candidateCount", 1, 16).value_or(1));
  asked.best_of = asked.n;
  if (const auto max = config.integer("maxOutputTokens", 1, kOutputTokensMax))
    asked.tokens_max = static_cast<std::uint32_t>(*max);
  asked.logprobs = config.boolean("responseLogprobs").value_or(false);
  if (const auto top = config.integer("logprobs", 0, 20)) {
    if (!asked.logprobs) config.refuse("logprobs", "needs responseLogprobs: true");
    asked.top_logprobs = static_cast<std::uint32_t>(*top);
  }
}

// What the answer must look like: a type, and a schema in one of two spellings.
void parse_answer_form(Fields& config, GenerationRequest& asked) {
  AnswerGrammar& g = asked.grammar;
  const std::string type = config.text("responseMimeType", 128).value_or("text/plain");
  const char* name = "responseSchema";
  const Json* schema = config.find(name);
  for (const char* other : {"responseJsonSchema", "_responseJsonSchema"})
    if (schema == nullptr) schema = config.find(name = other);
  if (schema != nullptr && !schema->is_object() && !schema->is_boolean())
    return config.refuse(name, "must be a schema");
  g.param = config.path(schema != nullptr ? name : "responseMimeType");
  if (type == "application/json") {
    g.kind = schema ? AnswerGrammar::Kind::json_schema : AnswerGrammar::Kind::json_object;
    if (schema != nullptr) g.schema = json_schema_of(*schema);
  } else if (type == "text/x.enum") {
    const Json* const values = schema != nullptr && schema->is_object() && schema->contains("enum")
                                   ? &(*schema)["enum"]
                                   : nullptr;
    if (values == nullptr || !values->is_array() || values->empty() || values->size() > 1024)
      return config.refuse(name, "text/x.enum needs an enum of 1 to 1024 texts");
    g.kind = AnswerGrammar::Kind::choice;
    for (const Json& value : *values) {
      if (!value.is_string()) return config.refuse(name, "an enum must hold texts");
      g.choices.push_back(value.get<std::string>());
    }
  } else if (type != "text/plain" && !type.empty()) {
    config.refuse("responseMimeType", "must be text/plain, application/json or text/x.enum");
  } else if (schema != nullptr) {
    config.refuse(name, "needs responseMimeType application/json or text/x.enum");
  } else {
    g = {};
  }
}

void parse_config(Fields& config, GenerationRequest& asked) {
  parse_numbers(config, asked);
  take_stops(config, "stopSequences", asked.stop);
  parse_answer_form(config, asked);
  if (const Json* modalities = config.find("responseModalities"))
    if (!modalities->is_array() || (!modalities->empty() && *modalities != Json::array({"TEXT"})))
      config.refuse("responseModalities", "this model answers with text only");
  if (auto thinking = config.object("thinkingConfig")) {
    asked.extras["thoughts"] = thinking->boolean("includeThoughts").value_or(false);
    for (const char* name : {"thinkingBudget", "thinkingLevel"}) thinking->find(name);
  }
  // Accepted and without effect here; named so that strict fields know them.
  for (const char* name :
       {"speechConfig", "mediaResolution", "enableAffectiveDialog", "audioTimestamp",
        "routingConfig", "modelSelectionConfig", "enableEnhancedCivicAnswers", "imageConfig"})
    config.find(name);
}

}  // namespace

std::string model_name(std::string_view name) {
  if (name.starts_with("models/")) name.remove_prefix(7);
  return std::string(name);
}

std::optional<ApiError> parse_generate(const Json& body, const ParseContext& context,
                                       GenerationRequest& asked) {
  Fields f(body, {}, Fields::Spelling::either);
  asked.chat = true;
  asked.prompt_field = "contents";
  asked.model = model_name(f.text("model", 1024).value_or(""));
  if (asked.model.empty()) asked.model = context.model;
  asked.sampling = context.sampling;
  asked.continuous_usage = true;  // every chunk has the usage so far
  parse_contents(f, asked);
  parse_tools(f, asked);
  auto config = f.object("generationConfig");
  if (config) parse_config(*config, asked);
  parse_kv(f, context.kv_header, context.kv, asked.kv);
  if (asked.kv.given) asked.priority = asked.kv.priority;
  if (f.find("cachedContent"))
    f.refuse("cachedContent", "is known only where content is generated or counted");
  for (const char* name : {"safetySettings", "labels", "store", "serviceTier"}) f.find(name);
  if (context.strict_fields && !f.failed()) {
    f.refuse_unknown();
    if (config) config->refuse_unknown();
  }
  if (f.failed()) return f.error();
  return std::nullopt;
}

namespace {

// The texts of one content, one after the other, and how many numbers are wanted of it.
void parse_embedded(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  auto content = f.object("content");
  if (!content) return f.refuse("content", "is required", "missing_required_parameter");
  const Json& parts = content->require("parts");
  if (f.failed()) return;
  if (!parts.is_array() || parts.empty() || parts.size() > 4096)
    return content->refuse("parts", "must be a list of 1 to 4096 texts");
  std::string text;
  for (const Json& part : parts) {
    const auto at = part.is_object() ? part.find("text") : part.end();
    if (!part.is_object() || at == part.end() || !at->is_string())
      return content->refuse("parts", "must hold texts");
    if (!text.empty()) text += '\n';
    text += at->get_ref<const std::string&>();
  }
  if (text.empty()) return content->refuse("parts", "must not be empty");
  asked.prompts.push_back({.text = std::move(text)});
  const auto dimensions =
      static_cast<std::uint32_t>(f.integer("outputDimensionality", 1, context.hidden).value_or(0));
  if (asked.prompts.size() > 1 && dimensions != asked.embedding.dimensions)
    f.refuse("outputDimensionality", "must be the same for all");
  asked.embedding.dimensions = dimensions;
  for (const char* name : {"model", "taskType", "title", "autoTruncate"}) f.find(name);
}

// What both kinds of bodies have, besides contents.
std::optional<ApiError> finish_embedding(Fields& f, const ParseContext& context,
                                         GenerationRequest& asked) {
  asked.prompt_field = "content";
  asked.tokens_max = 0;
  asked.embedding.pooling = context.pooling;
  if (!f.failed())
    if (auto problem = too_many_numbers(asked, context.hidden, false))
      f.refuse("requests", *problem);
  parse_kv(f, context.kv_header, context.kv, asked.kv);
  if (asked.kv.given)
    asked.priority = asked.kv.priority;
  else if (context.pooling != Pooling::last)
    asked.kv.policy.write = KvWrite::none;  // states of a mean cannot come from the cache
  return finish_fields(f, context);
}

}  // namespace

std::optional<ApiError> parse_embed(const Json& body, const ParseContext& context,
                                    GenerationRequest& asked) {
  Fields f(body, {}, Fields::Spelling::either);
  parse_embedded(f, context, asked);
  return finish_embedding(f, context, asked);
}

std::optional<ApiError> parse_batch_embed(const Json& body, const ParseContext& context,
                                          GenerationRequest& asked) {
  constexpr std::size_t kTextsMax = 1024;
  Fields f(body, {}, Fields::Spelling::either);
  const Json& requests = f.require("requests");
  if (!f.failed() && (!requests.is_array() || requests.empty() || requests.size() > kTextsMax))
    f.refuse("requests", fmt::format("must be a list of 1 to {}", kTextsMax));
  for (std::size_t i = 0; !f.failed() && i < requests.size(); ++i) {
    Fields one(requests[i], fmt::format("requests[{}].", i), Fields::Spelling::either);
    parse_embedded(one, context, asked);
    if (one.failed()) f.refuse(one.error());
  }
  asked.extras["batch"] = true;
  return finish_embedding(f, context, asked);
}

std::optional<ApiError> parse_conversation(const Json& body, const ParseContext&,
                                           GenerationRequest& asked) {
  Fields f(body, {}, Fields::Spelling::either);
  asked.chat = true;
  asked.prompt_field = "contents";
  parse_contents(f, asked);
  parse_tools(f, asked);
  if (f.failed()) return f.error();
  return std::nullopt;
}

const Json& counted_request(const Json& body) {
  if (body.is_object())
    for (const char* name : {"generateContentRequest", "generate_content_request"})
      if (body.contains(name) && body[name].is_object()) return body[name];
  return body;
}

std::optional<ApiError> without_cache(Json& body, const Json& cached) {
  Fields f(body, {}, Fields::Spelling::either);
  for (const char* name : kCachedFields)
    if (f.find(name))
      return bad_value(name, "is part of the cached content, and cannot be given besides it");
  const Json& own = f.require("contents");
  if (f.failed()) return f.error();
  Json contents = Json::array();
  const Json before = cached.value("contents", Json::array());
  for (const Json* list : {&before, &own})
    if (list->is_array())
      contents.insert(contents.end(), list->begin(), list->end());
    else
      contents.push_back(*list);
  body["contents"] = std::move(contents);
  for (const char* name : kCachedFields)
    if (cached.contains(name)) body[name] = cached[name];
  body.erase("cachedContent");
  body.erase("cached_content");
  return std::nullopt;
}

}  // namespace quire::gemini
