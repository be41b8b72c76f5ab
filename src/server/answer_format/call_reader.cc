#include "server/answer_format/call_reader.h"

#include <algorithm>

namespace quire {

std::size_t beginning_of(std::string_view mark, std::string_view text) {
  for (std::size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n)
    if (text.ends_with(mark.substr(0, n))) return n;
  return 0;
}

int mark_at(std::span<const std::string_view> marks, std::string_view text) {
  int found = kNoMark;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (text.starts_with(marks[i])) return static_cast<int>(i);
    if (marks[i].starts_with(text)) found = kMayBegin;
  }
  return found;
}

void CallReader::tell(ToolPiece::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const std::uint32_t index =
      kind == ToolPiece::Kind::arguments || kind == ToolPiece::Kind::call ? calls_ - 1 : 0;
  if (kind != ToolPiece::Kind::call && !out_.empty() && out_.back().kind == kind &&
      out_.back().index == index)
    out_.back().text += text;
  else
    out_.push_back({kind, index, std::string(text)});
}

void CallReader::say(std::string_view text) {
  spoke_ |= !text.empty();
  tell(ToolPiece::Kind::content, text);
}

void CallReader::begin_call(std::string_view name) {
  ++calls_;
  spoke_ = false;
  lead_.clear();
  out_.push_back({ToolPiece::Kind::call, calls_ - 1, std::string(name)});
}

void CallReader::argue(std::string_view text) { tell(ToolPiece::Kind::arguments, text); }

int CallReader::read_content(std::span<const std::string_view> marks, bool last) {
  if (!spoke_ && calls_ > 0)
    input_.erase(0, std::min(input_.find_first_not_of(kBlanks), input_.size()));
  std::size_t at = input_.npos, keep = 0;
  int which = kNoMark;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const std::size_t found = input_.find(marks[i]);
    if (found < at) {
      at = found;
      which = static_cast<int>(i);
    }
    keep = std::max(keep, beginning_of(marks[i], input_));
  }
  if (which == kNoMark) at = input_.size() - (last ? 0 : keep);
  const std::string_view before = std::string_view(input_).substr(0, at);
  const bool blank = !spoke_ && before.find_first_not_of(kBlanks) == before.npos;
  if (blank)
    lead_ += before;  // white space may be all there is before a call
  else
    say(std::exchange(lead_, {}).append(before));
  if (which != kNoMark) at += marks[static_cast<std::size_t>(which)].size();
  input_.erase(0, at);
  if (last && which == kNoMark && calls_ == 0) say(std::exchange(lead_, {}));
  return which;
}

}  // namespace quire
