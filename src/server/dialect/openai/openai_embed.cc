#include "server/dialect/openai/openai_embed.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "server/dialect/shared_fields.h"
#include "server/embedding.h"
#include "server/prompt.h"

namespace quire::openai {
namespace {

constexpr std::size_t kDocumentsMax = 1000;
constexpr std::size_t kQueryBytesMax = 64 << 10;

// Fields that both have, and the end of parsing.
std::optional<ApiError> finish_body(Fields& f, const ParseContext& context,
                                    GenerationRequest& asked) {
  asked.model = f.text("model", 1024).value_or("");
  if (asked.model.empty()) asked.model = context.model;
  asked.tokens_max = 0;
  parse_kv(f, context.kv_header, context.kv, asked.kv);
  if (const auto salt = f.text("cache_salt", 4096)) {
    check_salt(f, "cache_salt", *salt);
    if (asked.kv.policy.salt.empty()) asked.kv.policy.salt = *salt;
  }
  if (const auto priority = f.integer("priority", -1'000'000, 1'000'000))
    asked.priority = static_cast<std::int32_t>(std::clamp<std::int64_t>(-*priority, -100, 100));
  else if (asked.kv.given)
    asked.priority = asked.kv.priority;
  f.find("user");
  return finish_fields(f, context);
}

Json usage_of(const Usage& u) {
  return {{"prompt_tokens", u.prompt},
          {"total_tokens", u.prompt},
          {"prompt_tokens_details", {{"cached_tokens", u.cached}}}};
}

// The mean log-probability of the query's tokens.
double likelihood(const PromptInfo& prompt) {
  double sum = 0;
  for (const PromptLogprob& p : prompt.logprobs) sum += p.logprob;
  return prompt.logprobs.empty() ? 0 : sum / static_cast<double>(prompt.logprobs.size());
}

std::optional<std::string> document_text(const Json& document) {
  if (document.is_string()) return document.get<std::string>();
  if (document.is_object() && document.contains("text") && document["text"].is_string())
    return document["text"].get<std::string>();
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> parse_embeddings(const Json& body, const ParseContext& context,
                                         GenerationRequest& asked) {
  Fields f(body);
  asked.prompt_field = "input";
  const Json& input = f.require("input");
  if (!f.failed())
    if (auto error = parse_prompts(input, context.vocabulary, asked)) f.refuse(std::move(*error));
  EmbeddingRequest& e = asked.embedding;
  e.pooling = context.pooling;
  if (const auto name = f.text("pooling", 16)) {
    if (const auto found = find_pooling(*name))
      e.pooling = *found;
    else
      f.refuse("pooling", "must be last, mean or cls");
  }
  e.dimensions = static_cast<std::uint32_t>(f.integer("dimensions", 1, context.hidden).value_or(0));
  e.normalize = f.boolean("normalize").value_or(true);
  const std::string format = f.text("encoding_format", 16).value_or("float");
  if (format != "float" && format != "base64")
    f.refuse("encoding_format", "must be float or base64");
  asked.extras["base64"] = format == "base64";
  if (auto problem = too_many_numbers(asked, context.hidden, format == "base64"))
    f.refuse("input", *problem);
  asked.truncate_prompt = f.integer("truncate_prompt_tokens", -1, 1 << 30).value_or(0);
  asked.add_special = f.boolean("add_special_tokens").value_or(true);
  auto error = finish_body(f, context, asked);
  // States of a mean cannot come from the cache, so its blocks would only take the room of others.
  if (e.pooling != Pooling::last && !asked.kv.given) asked.kv.policy.write = KvWrite::none;
  return error;
}

std::optional<ApiError> parse_rerank(const Json& body, const ParseContext& context,
                                     GenerationRequest& asked) {
  Fields f(body);
  asked.prompt_field = "documents";
  const auto query = f.text("query", kQueryBytesMax);
  if ((!query || query->empty()) && !f.failed())
    f.refuse("query", "is required", "missing_required_parameter");
  const Json& documents = f.require("documents");
  if (!f.failed() &&
      (!documents.is_array() || documents.empty() || documents.size() > kDocumentsMax))
    f.refuse("documents", fmt::format("must be a list of 1 to {} texts", kDocumentsMax));
  const auto most =
      static_cast<std::uint32_t>(f.integer("max_tokens_per_doc", 1, 1 << 30).value_or(0));
  const auto top = f.integer("top_n", 1, 1 << 30);
  asked.extras["top_n"] = top.value_or(kDocumentsMax);
  const bool shown = f.boolean("return_documents").value_or(false);
  if (shown) asked.extras["documents"] = Json::array();
  if (!f.failed())
    for (const Json& document : documents) {
      auto text = document_text(document);
      if (!text) {
        f.refuse("documents", "must hold texts, or objects with a text");
        break;
      }
      if (shown) asked.extras["documents"].push_back(*text);
      asked.prompts.push_back({.text = "Document: " + std::move(*text),
                               .text_tokens_max = most,
                               .bridge = "\n\nQuery:",
                               .scored = " " + *query});
    }
  asked.rerank = true;
  asked.prompt_logprobs = 0;
  return finish_body(f, context, asked);
}

std::vector<HttpHeader> OpenAiBodyWriter::headers(Nanoseconds took) const {
  return {{"openai-processing-ms", std::to_string(took / 1'000'000)}};
}

Json EmbeddingsWriter::whole(const std::vector<WholeAnswer>&,
                             const std::vector<PromptInfo>& prompts, const Usage& usage,
                             const Json& kv) {
  Json data = Json::array();
  for (const PromptInfo& p : prompts) {
    const std::vector<float> e = shape_embedding(p.pooled, asked_.embedding);
    data.push_back(
        {{"object", "embedding"},
         {"index", data.size()},
         {"embedding", asked_.extras["base64"] == true ? Json(base64_floats(e)) : Json(e)}});
  }
  Json out{{"object", "list"},
           {"id", id_},
           {"model", head_.model},
           {"data", std::move(data)},
           {"usage", usage_of(usage)}};
  if (!kv.is_null()) out["kv"] = kv;
  return out;
}

Json RerankWriter::whole(const std::vector<WholeAnswer>&, const std::vector<PromptInfo>& prompts,
                         const Usage& usage, const Json& kv) {
  std::vector<double> scores;
  for (const PromptInfo& p : prompts) scores.push_back(likelihood(p));
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return scores[i]; });
  order.resize(std::min(order.size(), asked_.extras["top_n"].get<std::size_t>()));
  Json results = Json::array();
  for (const std::size_t i : order) {
    results.push_back({{"index", i}, {"relevance_score", std::exp(scores[i])}});
    if (asked_.extras.contains("documents"))
      results.back()["document"] = {{"text", asked_.extras["documents"][i]}};
  }
  Json out{{"id", id_},
           {"model", head_.model},
           {"results", std::move(results)},
           {"usage", usage_of(usage)}};
  if (!kv.is_null()) out["kv"] = kv;
  return out;
}

}  // namespace quire::openai
