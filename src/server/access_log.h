// server/access_log.h - one JSON line per request, without content, salts or keys.
#pragma once

#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace quire {

class AccessLog {
 public:
  AccessLog() = default;  // says nothing
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;

  Status open(const std::string& path);  // "-": stderr
  Status reopen();                       // after the file was moved away
  bool on() const { return file_ != nullptr; }
  void write(const Json& line);  // any thread

 private:
  std::mutex mutex_;
  std::string path_;
  std::FILE* file_ = nullptr;
};

std::string rfc3339(std::int64_t unix_ns);  // "2026-11-15T02:00:00.123456Z"
// Also with other offsets than Z. None where it is no such time between 1970 and 2200.
std::optional<std::int64_t> parse_rfc3339(std::string_view text);
std::int64_t unix_now_ns();

}  // namespace quire
