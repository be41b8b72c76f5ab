// base/file.h - whole files: mapped for reading, read into memory, or written so that a crash
// leaves either the old or the new file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

// Tells a file from another one, and from itself after a change.
struct FileStamp {
  std::uint64_t size = 0, inode = 0, device = 0;
  std::int64_t changed_ns = 0;  // since 1970

  static Result<FileStamp> of(const std::string& path);
  bool operator==(const FileStamp&) const = default;
};

// A file mapped read-only. Moving it keeps bytes() where they are.
//
// Whoever truncates the file kills whoever reads a mapping of it. So a process that lives on copies
// what it needs, and detaches:
//
//   TRY(MappedFile file, MappedFile::open(path));
//   const auto part = file.bytes().subspan(64, 1024);      // copied or parsed
//   file.detach();
//   TRY(auto bytes, file.read(part));                      // once more, if the file is still the same
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
  bool holds(std::span<const std::byte> part) const;  // whether it is a part of bytes()

  const FileStamp& stamp() const { return stamp_; }  // when it was opened

  // Gives the memory of this part back to the system; reading the part again costs page faults.
  void drop_pages(std::span<const std::byte> part) const;

  // Whatever happens to the file from now on cannot reach this process. bytes() keeps its addresses,
  // but whoever reads them crashes.
  void detach();
  // The bytes of a part of bytes(), read anew. An error if the file has changed since it was opened.
  Result<std::vector<std::byte>> read(std::span<const std::byte> part) const;

 private:
  void swap(MappedFile& o) noexcept {
    std::swap(bytes_, o.bytes_);
    std::swap(path_, o.path_);
    std::swap(stamp_, o.stamp_);
    std::swap(fd_, o.fd_);
  }
  std::span<const std::byte> bytes_;
  std::string path_;
  FileStamp stamp_;
  int fd_ = -1;  // for read(): another file may come to have this name
};

Result<std::string> read_file(const std::string& path);
Status write_file(const std::string& path,
                  std::string_view bytes);  // through a temporary name and a rename

}  // namespace quire
