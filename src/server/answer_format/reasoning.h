// server/answer_format/reasoning.h - parts an answer's text into reasoning and what follows it, while it is
// generated.
//
// Models write their reasoning first, between two marks (<think> and </think>). Where the prompt ends
// with the opening mark, the answer begins inside. However the text is cut into pieces, the same comes out.
//
//   ReasoningReader reader({"<think>", "</think>"}, prompt_text);
//   reader.add(text, reasoning, content);      // appends what is certain to both
//   reader.finish(reasoning, content);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

struct ReasoningMarks {
  std::string_view open = {}, close = {};  // both empty: answers hold no reasoning
};

// Whether a text ends with the mark, and perhaps white space.
bool ends_with_mark(std::string_view text, std::string_view mark);

class ReasoningReader {
 public:
  // `prompt_end`: the prompt's text, or its last bytes.
  ReasoningReader(ReasoningMarks marks, std::string_view prompt_end);

  void add(std::string_view text, std::string& reasoning, std::string& content);
  void finish(std::string& reasoning, std::string& content);
  bool inside() const { return state_ == State::inside; }

 private:
  enum class State : std::uint8_t { before, inside, closed, content };

  void read(bool last, std::string& reasoning, std::string& content);
  void think(std::string_view text, std::string& reasoning);

  ReasoningMarks marks_;
  State state_ = State::before;
  bool begun_ = false;    // reasoning was told
  std::size_t held_ = 0;  // line feeds that wait for more reasoning
  std::string lead_;      // white space before the first mark, if there is one
  std::string input_;     // not yet decided
};

}  // namespace quire
