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

}  // namespace quire
