#include "server/answer_format/reasoning.h"

#include <algorithm>

#include "server/answer_format/call_reader.h"

namespace quire {

bool ends_with_mark(std::string_view text, std::string_view mark) {
  const std::size_t end = text.find_last_not_of(kBlanks);
  return end != text.npos && text.substr(0, end + 1).ends_with(mark);
}

ReasoningReader::ReasoningReader(ReasoningMarks marks, std::string_view prompt_end)
    : marks_(marks) {
  if (marks_.open.empty())
    state_ = State::content;
  else if (ends_with_mark(prompt_end, marks_.open))
    state_ = State::inside;
}

void ReasoningReader::add(std::string_view text, std::string& reasoning, std::string& content) {
  if (state_ == State::content) {
    content += text;
    return;
  }
  input_ += text;
  read(false, reasoning, content);
}

void ReasoningReader::finish(std::string& reasoning, std::string& content) {
  read(true, reasoning, content);
}

// Tells all but the line feeds at both ends.
void ReasoningReader::think(std::string_view text, std::string& reasoning) {
  if (!begun_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  const std::size_t end = text.find_last_not_of('\n') + 1;  // 0: there are only line feeds
  if (end > 0) {
    reasoning.append(std::exchange(held_, 0), '\n').append(text.substr(0, end));
    begun_ = true;
  }
  if (begun_) held_ += text.size() - end;
}

// Line feeds around the marks belong to neither part: templates write them when they show earlier
// reasoning.
void ReasoningReader::read(bool last, std::string& reasoning, std::string& content) {
  if (state_ == State::before) {
    const std::size_t start = std::min(input_.find_first_not_of(kBlanks), input_.size());
    lead_.append(input_, 0, start);
    input_.erase(0, start);
    if (input_.starts_with(marks_.open)) {
      input_.erase(0, marks_.open.size());
      state_ = State::inside;
    } else if (last || !marks_.open.starts_with(input_)) {
      content += lead_;
      state_ = State::content;
    }
  }
  if (state_ == State::inside) {
    const std::size_t close = input_.find(marks_.close);
    std::size_t end = close;
    if (close == input_.npos)  // the last bytes may begin the mark
      end = input_.size() - (last ? 0 : beginning_of(marks_.close, input_));
    think(std::string_view(input_).substr(0, end), reasoning);
    input_.erase(0, close == input_.npos ? end : close + marks_.close.size());
    if (close != input_.npos) state_ = State::closed;
  }
  if (state_ == State::closed) {
    input_.erase(0, std::min(input_.find_first_not_of('\n'), input_.size()));
    if (!input_.empty()) state_ = State::content;
  }
  if (state_ == State::content) {
    content += input_;
    input_.clear();
  }
}

}  // namespace quire
