// server/answer_format/call_reader.h - finds tool calls in the text of an answer while it is generated.
//
// Each family of models writes calls its own way (server/answer_format/answer_format.h lists them);
// a reader reads one way. However the text is cut into pieces, the same comes out. What turns out to
// be no call is content.
//
//   for (piece of text) for (const ToolPiece& p : reader.add(piece)) ...
//   for (const ToolPiece& p : reader.finish()) ...
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

struct ToolPiece {
  enum class Kind : std::uint8_t { content, call, arguments, reasoning };
  Kind kind = Kind::content;
  std::uint32_t index = 0;  // of the call
  std::string text;         // content, the function's name, or a part of its arguments

  bool operator==(const ToolPiece&) const = default;
};

class CallReader {
 public:
  virtual ~CallReader() = default;

  std::vector<ToolPiece> add(std::string_view text) {
    input_ += text;
    read(false);
    return std::exchange(out_, {});
  }
  // The answer is over: nothing more can be waited for.
  std::vector<ToolPiece> finish() {
    read(true);
    return std::exchange(out_, {});
  }
  std::uint32_t calls() const { return calls_; }
  virtual bool reasoning() const { return false; }  // what comes now is reasoning

 protected:
  virtual void read(bool last) = 0;

  // Content up to the first of `marks`, which is removed from the input. White space before the
  // first call and after calls is dropped. Returns the number of the mark, or -1: more is needed.
  int read_content(std::span<const std::string_view> marks, bool last);
  void tell(ToolPiece::Kind kind, std::string_view text);
  void say(std::string_view text);  // content
  void begin_call(std::string_view name);
  void argue(std::string_view text);

  std::string input_;   // not yet decided
  std::string lead_;    // white space before what may become a call
  bool spoke_ = false;  // content was told since the last call

 private:
  std::vector<ToolPiece> out_;
  std::uint32_t calls_ = 0;
};

inline constexpr std::string_view kBlanks = " \t\r\n";

// How many of the text's last bytes could begin `mark`.
std::size_t beginning_of(std::string_view mark, std::string_view text);
// Whether `text` begins with one of the marks (its number), may become so (kMayBegin), or does not.
inline constexpr int kNoMark = -1, kMayBegin = -2;
int mark_at(std::span<const std::string_view> marks, std::string_view text);

}  // namespace quire
