// cli/prompt.h - reads messages typed in a terminal: editing, history, several lines as one.
//
// While a Prompt exists, Ctrl-C does not end the program. At the prompt it drops the message so
// far; elsewhere interrupted() becomes true. Ctrl-D at an empty prompt ends the input. Only one
// Prompt may exist at a time.
//
//   Prompt prompt(folder + "/history");
//   for (std::string message; prompt.read(message);) answer(message);
#pragma once

#include <string>

namespace quire::cli {

class Prompt {
 public:
  explicit Prompt(std::string history_file);

  // One line, or several when it asks to go on. False at the end of input.
  bool read(std::string& message);

  bool interrupted() const;  // since a message was last read

 private:
  const std::string history_file_;
};

}  // namespace quire::cli
