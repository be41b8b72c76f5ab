// server/answer_format/json_call.h - walks a tool call in JSON byte by byte, so that its arguments can be
// passed on while they are written.
//
//   JsonCall call;                                      // {"name": "f", "arguments": {...}}
//   for (char c : text) {
//     const auto state = call.add(c);                   // more, done or bad
//     if (call.named()) send(call.name(), call.take_arguments());
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace quire {

enum class JsonWalk : std::uint8_t { more, done, bad };

// An object with a name ("name" or "tool_name") and arguments ("arguments" or "parameters").
class JsonCall {
 public:
  JsonWalk add(char c);

  bool named() const { return named_; }
  const std::string& name() const { return name_; }
  bool has_arguments() const { return has_arguments_; }
  // What is new of the arguments, as it was written. Arguments that are a string with JSON in it are
  // unpacked.
  std::string take_arguments() { return std::exchange(arguments_, {}); }

 private:
  enum class Value : std::uint8_t {
    other,
    arguments,
    text,
    scalar
  };  // of arguments, but the first

  JsonWalk at_top(char c);
  void begin_arguments(Value value);
  void string_ended();
  void value_ended();

  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
  bool value_next_ = false;  // a key and its colon were read
  Value value_ = Value::other;
  bool named_ = false, has_arguments_ = false;
  std::string string_, key_, name_, arguments_;
};

// An object, as it is.
class JsonObject {
 public:
  JsonWalk add(char c);

 private:
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace quire
