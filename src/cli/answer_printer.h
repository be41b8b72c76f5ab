// cli/answer_printer.h - prints an answer as it comes, and says why it ended early. For `run` and
// `chat`.
//
// An answer that is cut may end within a character. The detokenizer ends it with U+FFFD, which is
// held back until it is known whether the answer goes on.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "cli/sampling_options.h"

namespace quire::cli {

class AnswerPrinter {
 public:
  void print(std::string_view piece) {
    write(std::exchange(held_, {}));
    if (piece.ends_with(kReplacement)) {
      held_ = kReplacement;
      piece.remove_suffix(kReplacement.size());
    }
    write(piece);
  }
  void end(bool cut) {
    if (!cut) write(held_);
    held_.clear();
  }
  const std::string& text() const { return text_; }  // that was printed

 private:
  static constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  void write(std::string_view piece) {
    text_ += piece;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  }
  std::string text_, held_;
};

// Of an answer that the model has not ended.
inline std::string why_cut(std::size_t tokens, const SamplingOptionsCli& asked) {
  return "stopped after " + std::to_string(tokens) + (tokens == 1 ? " token" : " tokens") +
         (asked.tokens_max && tokens >= *asked.tokens_max ? "; -n for more"
                                                          : ": the context is full");
}

}  // namespace quire::cli
