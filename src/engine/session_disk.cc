#include "engine/session_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "kv/key.h"

namespace quire {

Error disk_error(std::string_view what, const std::string& path) {
  return {errno == ENOSPC || errno == EDQUOT ? Code::exhausted : Code::unavailable,
          fmt::format("{}: cannot {}: {}", path, what, std::strerror(errno))};
}

OpenFile::OpenFile(const std::string& path, int flags)
    : fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)) {}

OpenFile::~OpenFile() {
  if (fd >= 0) ::close(fd);
}

Status write_at(const OpenFile& file, const std::string& path, std::span<const std::byte> bytes,
                std::uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file.fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return disk_error("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
  return {};
}

// SHA-256 of a whole file.
Result<std::string> file_digest(const OpenFile& file, const std::string& path) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  CHECK(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  std::vector<std::byte> buffer(1 << 20);
  for (off_t at = 0;;) {
    const ssize_t n = ::pread(file.fd, buffer.data(), buffer.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return disk_error("read", path);
    if (n == 0) break;
    CHECK(EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(n)) == 1);
    at += n;
  }
  BlockKey digest;
  CHECK(EVP_DigestFinal_ex(context.get(), digest.bytes.data(), nullptr) == 1);
  return digest.hex();
}

Status sync_folder(const std::string& folder) {
  const OpenFile opened(folder, O_RDONLY | O_DIRECTORY);
  if (opened.fd < 0 || ::fsync(opened.fd) != 0) return disk_error("sync", folder);
  return {};
}

Result<std::vector<std::byte>> SessionSource::read(std::uint64_t at, std::uint64_t count) const {
  const Error cut{Code::corrupt, "session file: it ends too early; nothing was loaded"};
  if (at > size_ || count > size_ - at) return cut;
  std::vector<std::byte> to(count);
  if (file_ == nullptr) {
    std::memcpy(to.data(), bytes_.data() + at, count);
    return to;
  }
  for (std::uint64_t done = 0; done < count;) {
    const ssize_t n =
        ::pread(file_->fd, to.data() + done, count - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return disk_error("read", "session file");
    if (n == 0) return cut;
    done += static_cast<std::uint64_t>(n);
  }
  return to;
}

}  // namespace quire
