#include "server/access_log.h"

#include <fmt/core.h>

#include <chrono>
#include <ctime>

#include "server/api_error.h"

namespace quire {

AccessLog::~AccessLog() {
  if (file_ != nullptr && file_ != stderr) std::fclose(file_);
}

Status AccessLog::open(const std::string& path) {
  path_ = path;
  return reopen();
}

Status AccessLog::reopen() {
  std::lock_guard lock(mutex_);
  if (path_.empty()) return {};
  if (file_ != nullptr && file_ != stderr) std::fclose(file_);
  file_ = path_ == "-" ? stderr : std::fopen(path_.c_str(), "a");
  if (file_ == nullptr)
    return Error{Code::unavailable, path_ + ": cannot be written; choose another --access-log"};
  return {};
}

void AccessLog::write(const Json& line) {
  std::string text = dump(line) + "\n";
  std::lock_guard lock(mutex_);
  if (file_ == nullptr) return;
  std::fwrite(text.data(), 1, text.size(), file_);
  std::fflush(file_);
}

std::int64_t unix_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string rfc3339(std::int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     unix_ns % 1'000'000'000 / 1000);
}

std::optional<std::int64_t> parse_rfc3339(std::string_view text) {
  // As many digits as `width`, and then one of `ends`.
  const auto number = [&text](std::size_t width, std::string_view ends) {
    int value = 0;
    if (text.size() < width + (ends.empty() ? 0 : 1)) return -1;
    for (std::size_t i = 0; i < width; ++i) {
      if (text[i] < '0' || text[i] > '9') return -1;
      value = 10 * value + (text[i] - '0');
    }
    text.remove_prefix(width);
    if (ends.empty()) return value;
    if (ends.find(text.front()) == ends.npos) return -1;
    text.remove_prefix(1);
    return value;
  };
  std::tm utc{};
  utc.tm_year = number(4, "-") - 1900;
  utc.tm_mon = number(2, "-") - 1;
  utc.tm_mday = number(2, "Tt ");
  utc.tm_hour = number(2, ":");
  utc.tm_min = number(2, ":");
  utc.tm_sec = number(2, "");
  if (utc.tm_year < 70 || utc.tm_year >= 300 || utc.tm_mon < 0 || utc.tm_mon > 11 ||
      utc.tm_mday < 1 || utc.tm_mday > 31 || utc.tm_hour < 0 || utc.tm_hour > 23 ||
      utc.tm_min < 0 || utc.tm_min > 59 || utc.tm_sec < 0 || utc.tm_sec > 60)
    return std::nullopt;
  std::int64_t fraction = 0;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    std::int64_t unit = 100'000'000;
    const std::size_t digits = text.size();
    for (; !text.empty() && text.front() >= '0' && text.front() <= '9'; unit /= 10) {
      fraction += unit * (text.front() - '0');
      text.remove_prefix(1);
    }
    if (text.size() == digits) return std::nullopt;
  }
  std::int64_t offset = 0;
  if (text.starts_with('+') || text.starts_with('-')) {
    const std::int64_t sign = text.front() == '-' ? -1 : 1;
    text.remove_prefix(1);
    const int hours = number(2, ":"), minutes = number(2, "");
    if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59) return std::nullopt;
    offset = sign * (hours * 3600 + minutes * 60);
  } else if (text.starts_with('Z') || text.starts_with('z')) {
    text.remove_prefix(1);
  } else {
    return std::nullopt;
  }
  if (!text.empty()) return std::nullopt;
  return (::timegm(&utc) - offset) * 1'000'000'000 + fraction;
}

}  // namespace quire
