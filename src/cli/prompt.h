// cli/prompt.h - reads messages typed in a terminal: editing, history, several lines as one.
//
// From its construction on Ctrl-C ends nothing: at the prompt it clears the line and drops the lines
// before it of the same message, elsewhere interrupted() says so. Ctrl-D at an empty prompt ends the input. One at a time.
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
