// server/dialect/gemini/gemini_writer.h - answers as Gemini's clients read them: one body, events, or the
// elements of a JSON array.
//
// The client takes any line of a stream that does not begin with "data: " for JSON, so there are no
// comments. Every chunk has the usage so far; the last one has the finish reason, the whole usage
// and the report about the cache.
#pragma once

#include <string>

#include "server/dialect/body_writer.h"
#include "server/dialect/whole_calls.h"
#include "server/generation_request.h"
#include "text/tokenizer.h"

namespace quire::gemini {

inline constexpr std::string_view kGeminiIdPrefix = "r_";

class GeminiWriter final : public AnswerWriter {
 public:
  GeminiWriter(const GenerationRequest& asked, AnswerHead head, const Tokenizer& tokenizer);

  std::string id() const override { return id_; }
  HttpResponse stream_head() const override;
  std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                    const Usage& so_far) override;
  std::string end(const Usage& usage, const Json& kv) override;
  std::string failure(const ApiError& error) override;
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;

 private:
  struct ChoiceState {
    WholeCalls calls;
    bool malformed = false;  // a call whose arguments are no object
    double logprobs = 0;     // their sum, over so many tokens
    std::uint64_t tokens = 0;
  };

  Json response(Json candidates, const Usage& usage, const Json& kv) const;
  std::string element(const Json& response);  // as one element of the stream
  Json candidate(std::uint32_t index, Json parts, const std::optional<FinishReason>& finish,
                 bool malformed) const;
  void add_calls(const std::vector<WholeAnswer::Call>& calls, Json& parts, bool& malformed) const;
  Json logprobs(const std::vector<Choice>& tokens) const;
  Json token_entry(TokenId token, float logprob) const;

  const AnswerHead head_;
  const std::string id_;
  const std::uint32_t choices_, top_logprobs_;
  const bool array_, thoughts_, logprobs_;
  const Tokenizer& tokenizer_;
  std::vector<ChoiceState> states_;
  std::uint32_t finished_ = 0;
  Json held_ = Json::array();  // the candidate that finished last: it goes out with the whole usage
  bool begun_ = false;
};

// {"embedding": {"values": [...]}}, or {"embeddings": [...]} of a batch.
class GeminiEmbedWriter final : public BodyWriter {
 public:
  GeminiEmbedWriter(const GenerationRequest& asked, AnswerHead head)
      : BodyWriter(asked, std::move(head), kGeminiIdPrefix) {}
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;
};

Json gemini_usage(const Usage& usage);
Json gemini_error(const ApiError& error);  // {"error": {...}}
int gemini_status(const ApiError& error);  // of the response, as Gemini has it
Json token_count(std::string_view modality, std::uint64_t tokens);

}  // namespace quire::gemini
