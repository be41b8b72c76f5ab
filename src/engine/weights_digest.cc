#include "engine/weights_digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/hex.h"
#include "tensor/gguf_parts.h"

namespace quire {
namespace {

constexpr std::size_t kRemembered = 64;  // files

// What tells one state of a file from another.
std::string state_of_file(const std::string& path, const struct stat& s) {
  return fmt::format("{} {} {}.{} {}.{} {} {}", path, s.st_size, s.st_mtim.tv_sec,
                     s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec, s.st_ino, s.st_dev);
}

Error cannot_hash(const std::string& path) {
  return {Code::unavailable, path + ": cannot be read: " + std::strerror(errno)};
}

Result<Digest> hash_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return cannot_hash(path);
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  std::vector<char> bytes(1 << 20);
  ssize_t got = 0;
  while ((got = ::read(file, bytes.data(), bytes.size())) > 0)
    CHECK(EVP_DigestUpdate(context.get(), bytes.data(), static_cast<std::size_t>(got)) == 1);
  const int problem = errno;
  ::close(file);
  errno = problem;
  if (got < 0) return cannot_hash(path);
  Digest digest;
  CHECK(EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1);
  return digest;
}

// Lines of a digest and the state of its file, the latest last.
class Remembered {
 public:
  explicit Remembered(std::string file) : file_(std::move(file)) {
    const auto text = read_file(file_);
    std::istringstream lines(text.ok() ? text.value() : std::string());
    for (std::string line; std::getline(lines, line);) lines_.push_back(line);
  }
  Result<Digest> digest(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return cannot_hash(path);
    const std::string state = state_of_file(path, info);
    for (const std::string& line : lines_) {
      Digest known;
      if (line.size() == 2 * known.size() + 1 + state.size() && line.ends_with(state) &&
          from_hex(line.substr(0, 2 * known.size()), known))
        return known;
    }
    TRY(const Digest digest, hash_file(path));
    lines_.push_back(to_hex(digest) + ' ' + state);
    changed_ = true;
    return digest;
  }
  void save() const {
    if (!changed_) return;
    std::string text;
    for (std::size_t i = lines_.size() - std::min(lines_.size(), kRemembered); i < lines_.size();
         ++i)
      text += lines_[i] + '\n';
    (void)write_file(file_, text);  // it costs time, the next time
  }

 private:
  std::string file_;
  std::vector<std::string> lines_;
  bool changed_ = false;
};

}  // namespace

Result<Digest> weights_digest(const std::string& path, const std::string& memory) {
  namespace fs = std::filesystem;
  Remembered remembered(memory);
  std::error_code error;
  TRY(std::vector<std::string> files, gguf_files(path));
  for (std::string& file : files) {
    file = fs::canonical(file, error).string();
    if (error) return Error{Code::not_found, path + ": " + error.message()};
  }
  if (fs::is_directory(files.front(), error)) {
    const std::string folder = std::exchange(files, {}).front();
    for (const fs::directory_entry& e : fs::directory_iterator(folder, error))
      if (e.path().extension() == ".safetensors" || e.path().extension() == ".json")
        files.push_back(e.path().string());
    if (error) return Error{Code::unavailable, path + ": " + error.message()};
    std::ranges::sort(files);
  } else if (files.size() == 1) {
    TRY(const Digest digest, remembered.digest(files.front()));
    remembered.save();
    return digest;
  }
  std::string all;
  for (const std::string& file : files) {
    TRY(const Digest digest, remembered.digest(file));
    all += fs::path(file).filename().string() + '\0' + to_hex(digest) + '\n';
  }
  remembered.save();
  return sha256(all);
}

}  // namespace quire
