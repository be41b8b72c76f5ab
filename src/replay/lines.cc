#include "replay/lines.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

namespace quire {
namespace {
gzFile gz(const std::shared_ptr<void>& file) { return static_cast<gzFile>(file.get()); }
}  // namespace

Result<LineReader> LineReader::open(const std::string& path) {
  errno = 0;
  const gzFile opened = gzopen(path.c_str(), "rb");
  if (opened == nullptr)
    return Error{Code::not_found,
                 fmt::format("{}: {}", path, errno ? std::strerror(errno) : "out of memory")};
  LineReader reader;
  reader.path_ = path;
  reader.file_ = std::shared_ptr<void>(opened, [](void* f) { gzclose(static_cast<gzFile>(f)); });
  return reader;
}

LineReader LineReader::over(std::string text, std::string name) {
  LineReader reader;
  reader.path_ = std::move(name);
  reader.buffer_ = std::move(text);
  reader.ended_ = true;
  return reader;
}

Result<std::optional<std::string_view>> LineReader::next() {
  for (std::size_t searched = at_;;) {
    if (const std::size_t end = buffer_.find('\n', searched); end != std::string::npos) {
      std::string_view line(buffer_.data() + at_, end - at_);
      at_ = end + 1;
      ++number_;
      return std::optional(line);
    }
    if (ended_) {
      if (at_ == buffer_.size()) return std::optional<std::string_view>();
      std::string_view line(buffer_.data() + at_, buffer_.size() - at_);
      at_ = buffer_.size();
      ++number_;
      return std::optional(line);
    }
    if (buffer_.size() - at_ > kLineMax)
      return Error{Code::corrupt, fmt::format("{} line {}: longer than {} MiB", path_, number_ + 1,
                                              kLineMax >> 20)};
    buffer_.erase(0, at_);
    at_ = 0;
    searched = buffer_.size();
    constexpr unsigned kChunk = 1u << 18;
    buffer_.resize(searched + kChunk);
    const int got = gzread(gz(file_), buffer_.data() + searched, kChunk);
    buffer_.resize(searched + static_cast<std::size_t>(std::max(got, 0)));
    int problem = Z_OK;
    const char* const message = gzerror(gz(file_), &problem);
    if (got < 0 || (problem != Z_OK && problem != Z_BUF_ERROR))
      return Error{Code::corrupt, fmt::format("{}: {}", path_, message)};
    if (got == 0) {
      if (problem == Z_BUF_ERROR)
        return Error{Code::corrupt, fmt::format("{}: the compressed file ends too early", path_)};
      ended_ = true;
    }
  }
}

}  // namespace quire
