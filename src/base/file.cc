#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace quire {
namespace {

Error system_error(const std::string& path, const char* verb) {
  const int e = errno;
  const Code code = e == ENOENT ? Code::not_found : Code::unavailable;
  if (path.empty()) return Error{code, "a file name is needed, but it is empty"};
  return Error{code, path + ": cannot " + verb + ": " + std::strerror(e)};
}

// Closes a descriptor at the end of a scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

FileStamp stamp_of(const struct stat& info) {
  return {.size = static_cast<std::uint64_t>(info.st_size),
          .inode = info.st_ino,
          .device = info.st_dev,
          .changed_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec};
}

}  // namespace

Result<FileStamp> FileStamp::of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return system_error(path, "stat");
  return stamp_of(info);
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  MappedFile mapped;
  mapped.path_ = path;
  mapped.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (mapped.fd_ < 0) return system_error(path, "open");
  struct stat info {};
  if (::fstat(mapped.fd_, &info) != 0) return system_error(path, "stat");
  if (!S_ISREG(info.st_mode)) return Error{Code::invalid, path + ": is not a regular file"};
  mapped.stamp_ = stamp_of(info);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return mapped;
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, mapped.fd_, 0);
  if (at == MAP_FAILED) return system_error(path, "map");
  mapped.bytes_ = {static_cast<const std::byte*>(at), size};
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (fd_ >= 0) ::close(fd_);
}

bool MappedFile::holds(std::span<const std::byte> part) const {
  const std::less_equal<const std::byte*> not_after;
  return !bytes_.empty() && not_after(bytes_.data(), part.data()) &&
         not_after(part.data() + part.size(), bytes_.data() + bytes_.size());
}

void MappedFile::drop_pages(std::span<const std::byte> part) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void MappedFile::detach() {
  if (bytes_.empty()) return;
  void* const at = const_cast<std::byte*>(bytes_.data());
  CHECK(::mmap(at, bytes_.size(), PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at);
}

Result<std::vector<std::byte>> MappedFile::read(std::span<const std::byte> part) const {
  const auto same = [&] {
    struct stat info {};
    return ::fstat(fd_, &info) == 0 && stamp_of(info) == stamp_;
  };
  std::vector<std::byte> bytes(part.size());
  const auto offset = part.data() - bytes_.data();
  std::size_t done = 0;
  while (done < bytes.size() && same()) {
    const ssize_t got = ::pread(fd_, bytes.data() + done, bytes.size() - done,
                                offset + static_cast<std::ptrdiff_t>(done));
    if (got == 0) break;
    if (got < 0 && errno != EINTR) return system_error(path_, "read");
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  if (done < bytes.size() || !same())
    return Error{Code::corrupt, path_ + ": has changed since it was opened; start again"};
  return bytes;
}

Result<std::string> read_file(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return system_error(path, "open");
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(file.fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path, "read");
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

Status write_file(const std::string& path, std::string_view bytes) {
  if (path.empty()) return Error{Code::invalid, "a file name is needed, but it is empty"};
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  {
    const Descriptor file{
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) return system_error(temporary, "create");
    while (!bytes.empty()) {
      const ssize_t put = ::write(file.fd, bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        const Error error = system_error(temporary, "write");
        ::unlink(temporary.c_str());
        return error;
      }
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
    ::fsync(file.fd);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const Error error = system_error(path, "rename into");
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

}  // namespace quire
