// server/dialect/openai/openai_writer.h - chat and text completions as OpenAI's clients read them.
#pragma once

#include <string>

#include "server/dialect/answer_writer.h"
#include "server/generation_request.h"
#include "text/tokenizer.h"

namespace quire::openai {

inline constexpr std::string_view kChatIdPrefix = "chatcmpl-", kTextIdPrefix = "cmpl-";

class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(const GenerationRequest& asked, AnswerHead head, const Tokenizer& tokenizer);

  std::string id() const override { return id_; }
  std::vector<HttpHeader> headers(Nanoseconds took) const override;
  HttpResponse stream_head() const override { return sse_head(": keep-alive\n\n"); }
  std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                    const Usage& so_far) override;
  std::string end(const Usage& usage, const Json& kv) override;
  std::string failure(const ApiError& error) override;
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;

 private:
  struct ChoiceState {
    bool begun = false;
    std::uint64_t characters = 0;  // of text so far, for text_offset
  };

  std::string chunk(std::string_view choices, const Usage* usage, const Json& kv = nullptr) const;
  std::string chat_piece(const AnswerPiece& piece, ChoiceState& state, const Usage& so_far);
  Json chat_choice(const WholeAnswer& answer) const;
  Json chat_logprobs(const std::vector<Choice>& tokens) const;
  Json text_logprobs(const std::vector<Choice>& tokens, const PromptInfo* echoed,
                     std::uint64_t& characters) const;
  std::string echo_text(const PromptInfo& prompt) const;
  Json prompt_logprobs(const PromptInfo& prompt) const;
  std::string_view finish_name(FinishReason finish) const;

  const GenerationRequest asked_;
  const AnswerHead head_;
  const std::string id_;
  const bool old_functions_;  // `functions` instead of `tools` were asked with
  const Tokenizer& tokenizer_;
  std::string chunk_head_;  // what every chunk begins with
  std::vector<ChoiceState> states_;
};

Json openai_usage(const Usage& usage, bool chat);
Json openai_error(const ApiError& error);  // {"error": {...}}
HttpResponse openai_error_response(const ApiError& error, std::string_view request_id);
// A list with an entry for each token: its text, bytes, log-probability and alternatives.
Json token_logprobs(const std::vector<Choice>& tokens, const Tokenizer& tokenizer,
                    bool skip_special);

}  // namespace quire::openai
