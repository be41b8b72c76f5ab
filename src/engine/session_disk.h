// engine/session_disk.h - the file calls that engine/session_store.h makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

Error disk_error(std::string_view what, const std::string& path);  // of errno

// A file, or a folder, while it is open. fd < 0: it could not be opened.
class OpenFile {
 public:
  OpenFile(const std::string& path, int flags);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  const int fd;
};

Status write_at(const OpenFile& file, const std::string& path, std::span<const std::byte> bytes,
                std::uint64_t at);
Result<std::string> file_digest(const OpenFile& file, const std::string& path);  // SHA-256
Status sync_folder(const std::string& folder);

// The bytes of a session that is loaded: of a file, or in memory. A file may change while it is
// read, so everything is checked when it is used.
class SessionSource {
 public:
  explicit SessionSource(std::string_view bytes) : bytes_(bytes), size_(bytes.size()) {}
  SessionSource(const OpenFile& file, std::uint64_t size) : file_(&file), size_(size) {}

  std::uint64_t size() const { return size_; }
  Result<std::vector<std::byte>> read(std::uint64_t at, std::uint64_t count) const;

 private:
  const OpenFile* file_ = nullptr;
  std::string_view bytes_;
  std::uint64_t size_;
};

}  // namespace quire
