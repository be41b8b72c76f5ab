#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

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

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return system_error(path, "open");
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return system_error(path, "stat");
  if (!S_ISREG(info.st_mode)) return Error{Code::invalid, path + ": is not a regular file"};
  MappedFile mapped;
  mapped.path_ = path;
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return mapped;
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (at == MAP_FAILED) return system_error(path, "map");
  mapped.bytes_ = {static_cast<const std::byte*>(at), size};
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::drop_pages(std::span<const std::byte> part) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
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
