#include "cli/progress_line.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace quire::cli {

std::string in_words(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  return seconds < 6000 ? fmt::format("{:.0f} min", seconds / 60)
                        : fmt::format("{:.1f} h", seconds / 3600);
}

ProgressLine::ProgressLine(std::string verb, std::string noun, double unit)
    : verb_(std::move(verb)),
      noun_(std::move(noun)),
      unit_(unit),
      terminal_(::isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

double ProgressLine::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void ProgressLine::at(std::uint64_t done, std::uint64_t all) {
  const double now = seconds();
  if (now < 1 || done == 0 || now - printed_at_ < (terminal_ ? 0.1 : 10)) return;
  printed_at_ = now;
  const double left =
      now * static_cast<double>(all - std::min(done, all)) / static_cast<double>(done);
  const auto count = [&](std::uint64_t n) {
    return fmt::format("{:.0f}", static_cast<double>(n) / unit_);
  };
  fmt::print(stderr, "{}{} {} of {} {}, {}, about {} left{}", terminal_ ? "\r" : "", verb_,
             count(done), count(all), noun_, in_words(now), in_words(left),
             terminal_ ? "\033[K" : "\n");
  std::fflush(stderr);
  shown_ = terminal_;
}

}  // namespace quire::cli
