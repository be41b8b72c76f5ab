#include "server/dialect/llama/llama_parse.h"

#include <fmt/core.h>

#include <cmath>

#include "server/dialect/shared_fields.h"
#include "server/kv_parse.h"
#include "server/prompt.h"

namespace quire::llama {
namespace {

constexpr std::int64_t kCountMost = 1 << 30;

// A text or tokens, or a list of one of them. {"prompt_string": text} is a text.
void parse_prompt(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  const Json& prompt = f.require("prompt");
  if (f.failed()) return;
  const Json* what = &prompt;
  if (what->is_object()) {
    const auto at = what->find("prompt_string");
    if (at == what->end() || !at->is_string())
      return f.refuse("prompt", "as an object must have a prompt_string, and nothing but text");
    what = &*at;
  }
  if (auto error = parse_prompts(*what, context.vocabulary, asked))
    return f.refuse(std::move(*error));
  if (asked.prompts.size() != 1)
    f.refuse("prompt", "must be one prompt; /v1/completions takes several");
}

// [[token, by], ...] or {"token": by}; false as `by` bans the token.
void parse_biases(Fields& f, const ParseContext& context, GenerationRequest& asked) {
  const Json* const bias = f.find("logit_bias");
  if (bias == nullptr || *bias == Json::array() || *bias == Json::object()) return;
  if (!bias->is_array() || bias->size() > 1024)
    return f.refuse("logit_bias", "must be a list of at most 1024 pairs of a token and a number");
  for (const Json& pair : *bias) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_unsigned() ||
        pair[0].get<std::uint64_t>() >= context.vocabulary)
      return f.refuse("logit_bias", "must hold pairs of a token of this model and a number");
    const bool bans = pair[1] == false;
    if (!bans && (!pair[1].is_number() || !(std::abs(pair[1].get<double>()) <= 100)))
      return f.refuse("logit_bias", "must be between -100 and 100, or false");
    asked.sampling.logit_bias.emplace_back(pair[0].get<TokenId>(),
                                           bans ? -100.0f : pair[1].get<float>());
  }
}

void parse_form(Fields& f, GenerationRequest& asked) {
  if (const Json* schema = f.find("json_schema"); schema != nullptr && *schema != Json::object()) {
    if (!schema->is_object()) return f.refuse("json_schema", "must be a schema");
    asked.grammar = {
        .kind = AnswerGrammar::Kind::json_schema, .schema = *schema, .param = "json_schema"};
  }
  const auto grammar = f.text("grammar", 256 << 10);
  if (!grammar || grammar->empty()) return;
  if (asked.grammar.kind != AnswerGrammar::Kind::none)
    return f.refuse("grammar", "cannot be combined with json_schema");
  asked.grammar = {.kind = AnswerGrammar::Kind::ebnf, .text = *grammar, .param = "grammar"};
}

}  // namespace

std::optional<ApiError> parse_completion(const Json& body, const ParseContext& context,
                                         GenerationRequest& asked) {
  Fields f(body);
  asked.model = f.text("model", 1024).value_or("");
  if (asked.model.empty()) asked.model = context.model;
  asked.parse_special = context.parse_special;
  parse_prompt(f, context, asked);
  SamplingOptions& s = asked.sampling = context.sampling;
  constexpr FloatField kNumbers[] = {
      {"temperature", 0, 2, &SamplingOptions::temperature},
      {"min_p", 0, 1, &SamplingOptions::min_p},
      {"typical_p", 0, 1, &SamplingOptions::typical_p},
      {"repeat_penalty", 0.01, 100, &SamplingOptions::repetition_penalty},
      {"presence_penalty", -2, 2, &SamplingOptions::presence_penalty},
      {"frequency_penalty", -2, 2, &SamplingOptions::frequency_penalty}};
  take_numbers(f, kNumbers, s);
  take_top_p(f, "top_p", s);
  take_top_k(f, "top_k", s);
  take_seed(f, asked, true);
  take_stops(f, "stop", asked.stop);
  parse_biases(f, context, asked);
  parse_form(f, asked);
  // -1 and -2: as many as there is room for.
  if (const auto tokens = f.integer("n_predict", -2, kCountMost); tokens && *tokens >= 0)
    asked.tokens_max = static_cast<std::uint32_t>(*tokens);
  asked.tokens_min = static_cast<std::uint32_t>(f.integer("n_min", 0, kCountMost).value_or(0));
  asked.ignore_eos = f.boolean("ignore_eos").value_or(false);
  if (const auto top = f.integer("n_probs", 0, 20); top && *top > 0) {
    asked.logprobs = true;
    asked.top_logprobs = static_cast<std::uint32_t>(*top);
  }
  asked.return_token_ids = f.boolean("return_tokens").value_or(false);
  asked.stream = f.boolean("stream").value_or(false);
  parse_kv(f, context.kv_header, context.kv, asked.kv);
  if (asked.kv.given) asked.priority = asked.kv.priority;
  if (f.boolean("cache_prompt").value_or(true) == false) asked.kv.policy.reuse = false;
  // Which slot computes is the scheduler's business here; the others have no effect.
  for (const char* name : {"id_slot",
                           "n_keep",
                           "n_discard",
                           "n_indent",
                           "n_cache_reuse",
                           "t_max_predict_ms",
                           "samplers",
                           "mirostat",
                           "mirostat_tau",
                           "mirostat_eta",
                           "dynatemp_range",
                           "dynatemp_exponent",
                           "xtc_probability",
                           "xtc_threshold",
                           "repeat_last_n",
                           "dry_multiplier",
                           "dry_base",
                           "dry_allowed_length",
                           "dry_penalty_last_n",
                           "dry_sequence_breakers",
                           "top_n_sigma",
                           "min_keep",
                           "penalize_nl",
                           "post_sampling_probs",
                           "response_fields",
                           "timings_per_token",
                           "return_progress",
                           "lora",
                           "image_data",
                           "user"})
    f.find(name);
  return finish_fields(f, context);
}

}  // namespace quire::llama
