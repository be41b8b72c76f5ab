// server/answer_format/answer_reader.h - parts an answer's text into reasoning, content and tool calls,
// by the format of its model.
//
//   AnswerReader reader(format, {.tools = asked.tools, .prompt_end = prompt.tail});
//   for (const ToolPiece& p : reader.add(text)) ...
//   for (const ToolPiece& p : reader.finish()) ...
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "server/answer_format/answer_format.h"
#include "server/answer_format/reasoning.h"

namespace quire {

struct ReadOptions {
  const Json& tools;                 // null: calls are text
  std::string_view prompt_end = {};  // the last bytes of the prompt
};

class AnswerReader {
 public:
  AnswerReader(AnswerFormat format, const ReadOptions& options);

  std::vector<ToolPiece> add(std::string_view text);
  std::vector<ToolPiece> finish();
  std::uint32_t calls() const { return calls_ ? calls_->calls() : 0; }
  bool reasoning() const {  // what comes now is reasoning
    return reasoning_.inside() || (calls_ && calls_->reasoning());
  }

 private:
  std::vector<ToolPiece> read(std::string_view text, bool last);

  ReasoningReader reasoning_;
  std::unique_ptr<CallReader> calls_;  // null: what is no reasoning is content
};

}  // namespace quire
