// base/file.h - whole files: mapped for reading, read into memory, or written so that a crash
// leaves either the old or the new file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire {

// A file mapped read-only. Moving it keeps bytes() where they are.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& o) noexcept { swap(o); }
  MappedFile& operator=(MappedFile&& o) noexcept {
    MappedFile(std::move(o)).swap(*this);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // Gives the memory of this part back to the system; reading the part again costs page faults.
  void drop_pages(std::span<const std::byte> part) const;

 private:
  void swap(MappedFile& o) noexcept {
    std::swap(bytes_, o.bytes_);
    std::swap(path_, o.path_);
  }
  std::span<const std::byte> bytes_;
  std::string path_;
};

Result<std::string> read_file(const std::string& path);
Status write_file(const std::string& path,
                  std::string_view bytes);  // through a temporary name and a rename

}  // namespace quire
