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

#include "server/dialect/answer_writer.h"
#include "server/dialect/dialect.h"

namespace quire::openai {

ParseRequest parse_embeddings, parse_rerank;

inline constexpr std::string_view kEmbeddingsIdPrefix = "embd-", kRerankIdPrefix = "rerank-";

// Answers that are never streamed.
class BodyWriter : public AnswerWriter {
 public:
  BodyWriter(const GenerationRequest& asked, AnswerHead head, std::string_view id_prefix)
      : asked_(asked), head_(std::move(head)), id_(std::string(id_prefix) + head_.id) {}

  std::string id() const override { return id_; }
  std::vector<HttpHeader> headers(Nanoseconds took) const override;
  HttpResponse stream_head() const override { return sse_head(""); }
  std::string piece(const AnswerPiece&, const std::vector<PromptInfo>&, const Usage&) override {
    return {};
  }
  std::string end(const Usage&, const Json&) override { return {}; }
  std::string failure(const ApiError&) override { return {}; }

 protected:
  const GenerationRequest asked_;
  const AnswerHead head_;
  const std::string id_;
};

class EmbeddingsWriter final : public BodyWriter {
 public:
  EmbeddingsWriter(const GenerationRequest& asked, AnswerHead head)
      : BodyWriter(asked, std::move(head), kEmbeddingsIdPrefix) {}
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;
};

class RerankWriter final : public BodyWriter {
 public:
  RerankWriter(const GenerationRequest& asked, AnswerHead head)
      : BodyWriter(asked, std::move(head), kRerankIdPrefix) {}
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;
};

}  // namespace quire::openai
