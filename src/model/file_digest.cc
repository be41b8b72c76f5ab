#include "model/file_digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace quire {
namespace {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(std::span<const std::byte> bytes) {
    CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  Digest finish() {
    Digest digest;
    CHECK(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                             nullptr) == 1);
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

Result<Digest> digest_of_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Error{Code::unavailable, path + ": cannot open: " + std::strerror(errno)};
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  Sha256 sha;
  std::vector<std::byte> buffer(1 << 20);
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int error = got < 0 ? errno : 0;
      ::close(fd);
      if (error) return Error{Code::unavailable, path + ": cannot read: " + std::strerror(error)};
      return sha.finish();
    }
    sha.add({buffer.data(), static_cast<std::size_t>(got)});
  }
}

}  // namespace

Result<Digest> digest_of_files(std::span<const std::string> paths) {
  CHECK(!paths.empty());
  if (paths.size() == 1) return digest_of_file(paths.front());
  Sha256 all;
  for (const std::string& path : paths) {
    TRY(const Digest one, digest_of_file(path));
    all.add(one);
  }
  return all.finish();
}

Digest digest_of(ByteParts parts) {
  Sha256 all;
  for (const std::span<const std::byte> part : parts) {
    if (parts.size() == 1) {
      all.add(part);
      continue;
    }
    Sha256 one;
    one.add(part);
    all.add(one.finish());
  }
  return all.finish();
}

}  // namespace quire
