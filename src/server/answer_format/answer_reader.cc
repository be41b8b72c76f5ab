#include "server/answer_format/answer_reader.h"

#include <algorithm>

namespace quire {
namespace {

ReasoningMarks marks_of(const AnswerFormat& format) {
  if (format.reasoning == nullptr) return {};
  return {format.reasoning->open, format.reasoning->close};
}

}  // namespace

AnswerReader::AnswerReader(AnswerFormat format, const ReadOptions& options)
    : reasoning_(marks_of(format), options.prompt_end) {
  // Reasoning without marks of its own is a message like others: one reader reads all of them.
  const bool messages = format.reasoning != nullptr && format.reasoning->open.empty();
  if (messages)
    calls_ = find_call_format(format.reasoning->name)
                 ->reader(format.calls != nullptr ? options.tools : Json());
  else if (format.calls != nullptr && !options.tools.is_null())
    calls_ = format.calls->reader(options.tools);
}

std::vector<ToolPiece> AnswerReader::add(std::string_view text) { return read(text, false); }
std::vector<ToolPiece> AnswerReader::finish() { return read({}, true); }

std::vector<ToolPiece> AnswerReader::read(std::string_view text, bool last) {
  std::string reasoning, content;
  reasoning_.add(text, reasoning, content);
  if (last) reasoning_.finish(reasoning, content);
  std::vector<ToolPiece> pieces;
  if (!reasoning.empty()) pieces.push_back({ToolPiece::Kind::reasoning, 0, std::move(reasoning)});
  if (!calls_) {
    if (!content.empty()) pieces.push_back({ToolPiece::Kind::content, 0, std::move(content)});
    return pieces;
  }
  std::ranges::move(calls_->add(content), std::back_inserter(pieces));
  if (last) std::ranges::move(calls_->finish(), std::back_inserter(pieces));
  return pieces;
}

}  // namespace quire
