#include "server/event_sequence.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "base/file.h"

namespace quire {

Result<EventSequence> EventSequence::open(std::string path) {
  EventSequence s;
  s.path_ = std::move(path);
  if (s.path_.empty()) {
    s.reserved_ = UINT64_MAX;
    return s;
  }
  if (::access(s.path_.c_str(), F_OK) == 0) {
    TRY(const std::string text, read_file(s.path_));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), s.next_);
    if (error != std::errc() || end == text.data() || *end != '\n')
      return Error{Code::corrupt,
                   s.path_ +
                       ": holds no number of KV events; delete it, and tell subscribers "
                       "to start again"};
  }
  TRY_STATUS(s.reserve());
  return s;
}

std::uint64_t EventSequence::take() {
  const std::uint64_t taken = next_++;
  if (next_ >= reserved_) written_ = reserve();
  return taken;
}

// The new file is complete before it takes the old one's name.
Status EventSequence::reserve() {
  reserved_ = next_ + kReserved;
  const std::string text = std::to_string(reserved_) + "\n", fresh = path_ + ".new";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool ok = fd >= 0 &&
                  ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                  ::fsync(fd) == 0;
  if (fd >= 0) ::close(fd);
  if (!ok || std::rename(fresh.c_str(), path_.c_str()) != 0)
    return Error{Code::unavailable,
                 path_ + ": the numbers of KV events cannot be kept there; see --kv-events-state"};
  return {};
}

}  // namespace quire
