// server/tools.h - tool calls: describes tools in prompts of models whose template does not know
// them, and finds calls in answers while they are generated.
//
// A call is written <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as many models were
// taught. An answer that is one bare JSON object with a name is read as a call, too.
//
//   ToolCallReader reader;
//   for (piece of text) for (const ToolPiece& p : reader.add(piece)) ...
//   for (const ToolPiece& p : reader.finish()) ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quire {

inline constexpr std::string_view kToolOpen = "<tool_call>", kToolClose = "</tool_call>";

// Messages for a template that does not know tools: they are described in a system message, calls
// and their results become text.
Json messages_with_tools(const Json& messages, const Json& tools);

struct ToolPiece {
  enum class Kind : std::uint8_t { content, call, arguments };
  Kind kind = Kind::content;
  std::uint32_t index = 0;  // of the call
  std::string text;         // content, the function's name, or a part of its arguments

  bool operator==(const ToolPiece&) const = default;
};

class ToolCallReader {
 public:
  std::vector<ToolPiece> add(std::string_view text);
  std::vector<ToolPiece> finish();  // the answer is over: nothing more can be waited for
  std::uint32_t calls() const { return calls_; }

 private:
  enum class State : std::uint8_t { content, call, after };

  void read(bool last);
  // Each takes what it can of the input; false: it needs more of it.
  bool read_content(bool last);
  bool read_call(bool last);
  bool read_after(bool last);

  void say(std::string_view text);
  void open_call(std::size_t lead, std::size_t skip, bool bare);
  void call_char(char c);
  void string_ended();
  void value_ended();
  void begin_call();
  void give_up();  // it was no call: it is text

  State state_ = State::content;
  std::string input_;  // not yet decided
  std::vector<ToolPiece> out_;
  bool spoke_ = false;  // content was told since the last call

  // Of the call at hand.
  std::string lead_, raw_, string_, key_, name_, early_arguments_;
  int depth_ = 0;
  bool bare_ = false;  // no tags around it
  bool in_string_ = false, escaped_ = false, value_next_ = false, in_arguments_ = false;
  bool begun_ = false, has_arguments_ = false;
  std::uint32_t calls_ = 0;
};

}  // namespace quire
