// server/dialect/anthropic/anthropic_writer.h - messages, their events and errors as Anthropic's
// clients read them.
#pragma once

#include <string>

#include "server/dialect/answer_writer.h"
#include "server/generation_request.h"

namespace quire::anthropic {

inline constexpr std::string_view kMessageIdPrefix = "msg_";

// How a prompt's tokens are reported: each is in exactly one of the four counts.
struct PromptUsage {
  std::uint64_t input = 0, read = 0;
  std::uint64_t created_5m = 0, created_1h = 0;
};
PromptUsage prompt_usage(const Usage& usage, const CacheReporting& reporting);

class AnthropicWriter final : public AnswerWriter {
 public:
  AnthropicWriter(const GenerationRequest& asked, AnswerHead head);

  std::string id() const override { return id_; }
  std::vector<HttpHeader> headers(Nanoseconds) const override;
  HttpResponse stream_head() const override;
  void explained(const Explanation& e) override;
  std::string begin(const Usage& so_far) override;
  std::string piece(const AnswerPiece& piece, const std::vector<PromptInfo>& prompts,
                    const Usage& so_far) override;
  std::string end(const Usage& usage, const Json& kv) override;
  std::string failure(const ApiError& error) override;
  Json whole(const std::vector<WholeAnswer>& answers, const std::vector<PromptInfo>& prompts,
             const Usage& usage, const Json& kv) override;

 private:
  enum class Block : std::uint8_t { none, thinking, text, tool };

  Json message(Json content, const Usage& usage) const;
  Json usage_json(const Usage& usage) const;
  std::string start_block(Block kind, Json block);
  std::string close_block();
  std::string delta(Json what) const;
  std::string stop_reason(FinishReason finish, const std::string& stop, const Usage& usage) const;

  const AnswerHead head_;
  const std::string id_;
  const std::uint32_t tokens_max_;
  Json diagnostics_;  // null: nobody asked, or all was reused
  Block open_ = Block::none;
  std::uint32_t blocks_ = 0;  // begun so far
  FinishReason finish_ = FinishReason::stop;
  std::string stop_;
};

HttpResponse error_response(const ApiError& error, std::string_view request_id);

}  // namespace quire::anthropic
