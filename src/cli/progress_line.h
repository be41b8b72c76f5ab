// cli/progress_line.h - shows the progress of long work: on a terminal in one line that changes,
// elsewhere in a new line every ten seconds. Prints nothing in the first second.
//
//   ProgressLine line("measured", "layers");
//   line.at(3, 62);                        // measured 3 of 62 layers, 14 s, about 5 min left
//
// The line on a terminal is wiped when the object goes. One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace quire::cli {

class ProgressLine {
 public:
  // Figures are divided by `unit`: 1e6 makes "MB" of bytes.
  ProgressLine(std::string verb, std::string noun, double unit = 1);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();

  void at(std::uint64_t done, std::uint64_t all);
  double seconds() const;  // since it was made

 private:
  const std::string verb_, noun_;
  const double unit_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double printed_at_ = 0;  // seconds when it last spoke
  bool shown_ = false;     // there is a line to wipe
};

std::string in_words(double seconds);  // "14 s", "5 min", "2.1 h"

}  // namespace quire::cli
