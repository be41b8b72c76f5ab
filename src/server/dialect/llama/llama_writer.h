// server/dialect/llama/llama_writer.h - answers of POST /completion as llama-server's clients read them:
// one body, or events without a last [DONE].
#pragma once

#include <string>

#include "server/dialect/answer_writer.h"
#include "server/generation_request.h"
#include "text/tokenizer.h"

namespace quire::llama {

inline constexpr std::string_view kLlamaIdPrefix = "llama-";

class LlamaWriter final : public AnswerWriter {
 public:
  LlamaWriter(const GenerationRequest& asked, AnswerHead head, const Tokenizer& tokenizer);

  std::string id() const override { return id_; }
  HttpResponse stream_head() const override;
  std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                    const Usage& so_far) override;
  std::string end(const Usage& usage, const Json& kv) override;
  std::string failure(const ApiError& error) override;
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;

 private:
  struct Ended {
    FinishReason how = FinishReason::stop;
    std::string word;  // the stop string, or empty
    bool has_new_line = false;
  };
  Json last(const Ended& ended, const Usage& usage, const Json& kv) const;
  Json probabilities(const std::vector<Choice>& tokens) const;

  const GenerationRequest asked_;
  const AnswerHead head_;
  const std::string id_;
  const Tokenizer& tokenizer_;
  Ended ended_;
};

}  // namespace quire::llama
