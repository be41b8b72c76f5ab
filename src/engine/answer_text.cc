#include "engine/answer_text.h"

#include <algorithm>

namespace quire {

AnswerText::AnswerText(const Tokenizer& tokenizer, const StopStrings& stops,
                       AnswerTextOptions options)
    : options_(std::move(options)),
      detokenizer_(tokenizer, {.skip_special = options_.skip_special}),
      matcher_(stops) {}

bool AnswerText::add(const Choice& token, std::string& out) {
  if (stopped()) return true;
  ++tokens_;
  logprob_sum_ += token.logprob;
  if (std::ranges::find(options_.end_tokens, token.token) != options_.end_tokens.end()) {
    ends_.push_back(bytes_);
    settle();
    return false;
  }
  const bool visible = std::ranges::find(options_.visible, token.token) != options_.visible.end();
  const std::string text = detokenizer_.add(token.token, visible);
  bytes_ += static_cast<std::uint32_t>(text.size());
  ends_.push_back(bytes_);
  const std::size_t before = out.size();
  if (tokens_ < options_.tokens_min) {
    out += text;
  } else {
    stopped_by_ = matcher_.add(text, out);
    if (stopped() && options_.include_stop) out += options_.stop[*stopped_by_];
  }
  emitted_ += static_cast<std::uint32_t>(out.size() - before);
  settle();
  return stopped();
}

void AnswerText::finish(std::string& out) {
  if (stopped()) return;
  const std::size_t before = out.size();
  const std::string rest = detokenizer_.finish();
  bytes_ += static_cast<std::uint32_t>(rest.size());
  if (stopped_by_ = matcher_.add(rest, out); stopped()) {
    if (options_.include_stop) out += options_.stop[*stopped_by_];
  } else {
    matcher_.finish(out);
    for (std::uint32_t& end : ends_) end = 0;  // nothing is held back any more
  }
  emitted_ += static_cast<std::uint32_t>(out.size() - before);
  settle();
}

const std::string* AnswerText::stopped_by() const {
  return stopped() ? &options_.stop[*stopped_by_] : nullptr;
}

double AnswerText::mean_logprob() const { return tokens_ == 0 ? 0 : logprob_sum_ / tokens_; }

void AnswerText::settle() {
  const auto shown = std::ranges::find_if(ends_, [&](std::uint32_t e) { return e > emitted_; });
  shown_ += static_cast<std::uint32_t>(shown - ends_.begin());
  ends_.erase(ends_.begin(), shown);
}

}  // namespace quire
