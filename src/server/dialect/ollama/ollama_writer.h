// server/dialect/ollama/ollama_writer.h - answers as Ollama's clients read them: a JSON object per line,
// or one object.
#pragma once

#include <string>

#include "base/clock.h"
#include "server/dialect/body_writer.h"
#include "server/dialect/whole_calls.h"
#include "server/generation_request.h"
#include "text/tokenizer.h"

namespace quire::ollama {

class OllamaWriter final : public AnswerWriter {
 public:
  OllamaWriter(const GenerationRequest& asked, AnswerHead head, const Tokenizer& tokenizer);

  std::string id() const override { return head_.id; }
  HttpResponse stream_head() const override;
  std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                    const Usage& so_far) override;
  std::string end(const Usage& usage, const Json& kv) override;
  std::string failure(const ApiError& error) override;
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;

 private:
  Json line(const std::string& text, const std::string& thinking, Json calls) const;
  Json calls_json(const std::vector<WholeAnswer::Call>& calls) const;
  void add_logprobs(const std::vector<Choice>& tokens, Json& to) const;
  void finish(FinishReason how, const Usage& usage, const Json& kv, Json& to) const;

  const AnswerHead head_;
  const bool generate_, logprobs_, context_;
  const Tokenizer& tokenizer_;
  const Nanoseconds began_ = SteadyClock().now();
  WholeCalls calls_;
  FinishReason finish_ = FinishReason::stop;
  std::vector<TokenId> tokens_;  // of prompt and answer: what `context` is
};

// {"embeddings": [[...]]}, or {"embedding": [...]} as /api/embeddings had it.
class OllamaEmbedWriter final : public BodyWriter {
 public:
  OllamaEmbedWriter(const GenerationRequest& asked, AnswerHead head)
      : BodyWriter(asked, std::move(head), {}) {}
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;

 private:
  const Nanoseconds began_ = SteadyClock().now();
};

Json ollama_error(const ApiError& error);  // {"error": "..."}

}  // namespace quire::ollama
