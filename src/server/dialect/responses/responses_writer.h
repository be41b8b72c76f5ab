// server/dialect/responses/responses_writer.h - answers as OpenAI's Responses: items of output, whole or
// as numbered events.
//
// Both ways go through piece(): an answer that is sent whole is one piece whose events nobody reads. So
// ids, order and contents cannot differ. The last piece stores the response, before the client can ask
// for it.
#pragma once

#include "server/cache_diagnostics.h"
#include "server/dialect/answer_writer.h"
#include "server/dialect/responses/turn.h"
#include "server/generation_request.h"
#include "text/tokenizer.h"

namespace quire::responses {

class ResponsesWriter final : public AnswerWriter {
 public:
  // `asked.notes` is a Turn.
  ResponsesWriter(const GenerationRequest& asked, AnswerHead head, const Tokenizer& tokenizer);

  std::string id() const override { return id_; }
  std::vector<HttpHeader> headers(Nanoseconds took) const override;
  HttpResponse stream_head() const override { return sse_head(": keep-alive\n\n"); }
  void explained(const Explanation& e) override { why_ = diagnose_cache(e); }
  std::string begin(const Usage& so_far) override;
  std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                    const Usage& so_far) override;
  std::string end(const Usage& usage, const Json& kv) override;
  std::string failure(const ApiError& error) override;
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;

 private:
  enum class Kind : std::uint8_t { none, reasoning, message, call };
  struct Item {  // of the output, while it grows
    Kind kind = Kind::none;
    std::string id = {}, call_id = {}, name = {};
    std::string text = {};  // reasoning, of the message, or arguments
    Json logprobs = Json::array();
  };

  static std::string_view event_of(Kind kind);  // the name of its events, without .delta or .done
  std::string event(std::string_view type, Json fields);
  std::string open(Kind kind, std::string name = {});
  std::string add(std::string_view text, const Json& logprobs);
  std::string close(bool whole);
  Json text_part() const;
  Json item_json(std::string_view status) const;
  Json response(std::string_view status) const;
  Json diagnostics() const;
  Json finished(const Usage& usage, const Json& kv);  // and stored

  const GenerationRequest asked_;
  const AnswerHead head_;
  const std::string id_;
  const Tokenizer& tokenizer_;
  Turn& turn_;
  CacheDiagnosis why_{.change = CacheChange::unavailable};
  std::uint64_t sequence_ = 0;   // of the next event
  Json output_ = Json::array();  // items that are complete
  Item item_;                    // the one that grows
  bool cut_ = false;             // by the limit
};

}  // namespace quire::responses
