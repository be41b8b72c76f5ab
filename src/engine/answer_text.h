// engine/answer_text.h - the text of one answer as its tokens come: detokenized, cut at stop
// strings, with the number of tokens that count.
//
// Runs outside the engine thread (server, command line). The engine samples until it is told that a
// stop string was found. Tokens after the stop string are ignored here, so text and counts do not
// depend on when the engine was told.
//
//   TRY(StopStrings stops, StopStrings::create({"\n\n"}));            // outlives the answer
//   AnswerText text(tokenizer, stops, {.tokens_min = 4});
//   if (text.add(choice, out)) service.finish(ticket, index);         // out: what is certain now
//   text.finish(out);                                                 // out: the rest
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/stop.h"

namespace quire {

struct AnswerTextOptions {
  bool skip_special = true;              // leave control tokens out of the text
  std::vector<TokenId> visible = {};     // but for these
  bool include_stop = false;             // the stop string stays at the end of the text
  std::uint32_t tokens_min = 0;          // stop strings that begin earlier are text
  std::vector<std::string> stop = {};    // as given to StopStrings::create
  std::vector<TokenId> end_tokens = {};  // that end the answer and leave no text; ignore_end: none
};

class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, const StopStrings& stops, AnswerTextOptions options);

  // Appends the text that became certain. True: a stop string is there and the answer is over.
  bool add(const Choice& token, std::string& out);
  // The answer ended otherwise; nothing after a stop string.
  void finish(std::string& out);

  bool stopped() const { return stopped_by_.has_value(); }
  const std::string* stopped_by() const;            // the stop string that was found
  std::uint32_t tokens() const { return tokens_; }  // that count, the end token included
  // Tokens whose log-probabilities may be sent: their text has been appended, or they have no text
  // and come before a token whose text has been.
  std::uint32_t tokens_shown() const { return shown_; }
  double mean_logprob() const;  // of the tokens that count; ranks best_of

 private:
  void settle();

  AnswerTextOptions options_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::optional<std::size_t> stopped_by_;
  std::vector<std::uint32_t> ends_;  // bytes of text after each token not yet shown
  std::uint32_t bytes_ = 0, emitted_ = 0;
  std::uint32_t tokens_ = 0, shown_ = 0;
  double logprob_sum_ = 0;
};

}  // namespace quire
