// server/dialect/openai/openai_embed.h - /v1/embeddings as OpenAI's clients read them, and /v1/rerank in
// the shape of Cohere's and Jina's.
//
// Both are prompts without answers: an embedding is made of a prompt's last states, and a document's
// relevance is the likelihood of the query after it (query likelihood: Ponte and Croft 1998; with
// language models: Sachan et al. 2022). Documents come first, so each is a cached prefix when the next
// query comes.
#pragma once

#include <string>
#include <vector>

#include "server/dialect/body_writer.h"
#include "server/dialect/dialect.h"

namespace quire::openai {

ParseRequest parse_embeddings, parse_rerank;

inline constexpr std::string_view kEmbeddingsIdPrefix = "embd-", kRerankIdPrefix = "rerank-";

// With the headers that OpenAI's clients read.
class OpenAiBodyWriter : public BodyWriter {
 public:
  using BodyWriter::BodyWriter;
  std::vector<HttpHeader> headers(Nanoseconds took) const override;
};

class EmbeddingsWriter final : public OpenAiBodyWriter {
 public:
  EmbeddingsWriter(const GenerationRequest& asked, AnswerHead head)
      : OpenAiBodyWriter(asked, std::move(head), kEmbeddingsIdPrefix) {}
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;
};

class RerankWriter final : public OpenAiBodyWriter {
 public:
  RerankWriter(const GenerationRequest& asked, AnswerHead head)
      : OpenAiBodyWriter(asked, std::move(head), kRerankIdPrefix) {}
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;
};

}  // namespace quire::openai
