#include "server/dialect/openai/openai_embed.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire::openai {
namespace {

constexpr std::uint32_t kHidden = 2048;

std::optional<ApiError> read_embeddings(const Json& body, GenerationRequest& asked) {
  return parse_embeddings(
      body, {.vocabulary = 100, .model = "m", .hidden = kHidden, .kv = {.kv_format = "f16"}},
      asked);
}

std::optional<ApiError> read_rerank(const Json& body, GenerationRequest& asked) {
  return parse_rerank(body, {.vocabulary = 100, .model = "m", .kv = {.kv_format = "f16"}}, asked);
}

TEST(OpenAiEmbed, AnEmbeddingIsAPromptWithoutAnAnswer) {
  GenerationRequest asked;
  const Json body = Json::parse(
      R"({"input": ["a", "b"], "dimensions": 7, "pooling": "mean", "encoding_format": "base64"})");
  ASSERT_FALSE(read_embeddings(body, asked));
  EXPECT_EQ(asked.tokens_max, 0u);
  EXPECT_EQ(asked.prompts.size(), 2u);
  EXPECT_EQ(asked.embedding.pooling, Pooling::mean);
  EXPECT_EQ(asked.embedding.dimensions, 7u);
  EXPECT_EQ(asked.kv.policy.write, KvWrite::none);  // a mean finds nothing cached
}

TEST(OpenAiEmbed, AnswersAreBounded) {
  GenerationRequest asked;
  Json body{{"input", Json(600, "a")}};
  EXPECT_EQ(read_embeddings(body, asked)->param, "input");  // 600 x 2,048 numbers as text
  body["encoding_format"] = "base64";
  asked = {};
  EXPECT_FALSE(read_embeddings(body, asked));
  body["input"] = Json(1025, "a");
  asked = {};
  EXPECT_EQ(read_embeddings(body, asked)->param, "input");
  asked = {};
  EXPECT_EQ(read_rerank({{"query", "q"}, {"documents", Json(1001, "a")}}, asked)->param,
            "documents");
  asked = {};
  EXPECT_EQ(read_rerank({{"query", std::string(70'000, 'q')}, {"documents", {"a"}}}, asked)->param,
            "query");
}

TEST(OpenAiEmbed, EmbeddingsComeInOrder) {
  GenerationRequest asked;
  ASSERT_FALSE(read_embeddings({{"input", {"a", "b"}}, {"normalize", false}}, asked));
  EmbeddingsWriter writer(asked,
                          {.id = "x", .created = 1, .model = "m", .system_fingerprint = "f"});
  const Json out = writer.whole({},
                                {{.tokens = {1}, .logprobs = {}, .pooled = {1, 2}},
                                 {.tokens = {2}, .logprobs = {}, .pooled = {3, 4}}},
                                {.prompt = 5, .cached = 2}, nullptr);
  EXPECT_EQ(out["data"][0]["embedding"], Json({1.0, 2.0}));
  EXPECT_EQ(out["data"][1]["embedding"], Json({3.0, 4.0}));
  EXPECT_EQ(out["data"][1]["index"], 1);
  EXPECT_EQ(out["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(out["usage"]["total_tokens"], 5);
  EXPECT_FALSE(out.contains("kv"));
}

PromptInfo scored(std::initializer_list<float> logprobs) {
  PromptInfo p{.tokens = {}, .logprobs = {}, .pooled = {}};
  for (const float l : logprobs)
    p.logprobs.push_back({.token = 0, .logprob = l, .alternatives = {}});
  return p;
}

TEST(OpenAiEmbed, TheLikeliestDocumentComesFirstAndTiesKeepTheirOrder) {
  GenerationRequest asked;
  ASSERT_FALSE(read_rerank({{"query", "q"},
                            {"documents", {"a", {{"text", "b"}}, "c", "d"}},
                            {"top_n", 3},
                            {"return_documents", true}},
                           asked));
  EXPECT_EQ(asked.prompts[1].text, "Document: b");
  EXPECT_EQ(asked.prompts[1].scored, " q");
  RerankWriter writer(asked, {.id = "x", .created = 1, .model = "m", .system_fingerprint = "f"});
  const Json results =
      writer.whole({}, {scored({-2, -2}), scored({-1, -3}), scored({-1, -1}), scored({-9, -9})}, {},
                   nullptr)["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0]["index"], 2);
  EXPECT_DOUBLE_EQ(results[0]["relevance_score"].get<double>(), std::exp(-1.0));
  EXPECT_EQ(results[0]["document"]["text"], "c");
  EXPECT_EQ(results[1]["index"], 0);
  EXPECT_EQ(results[2]["index"], 1);
}

}  // namespace
}  // namespace quire::openai
