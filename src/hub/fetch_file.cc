#include "hub/fetch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/hex.h"

namespace quire {
namespace {

constexpr std::uint64_t kNoteEvery = 1
                                     << 20;  // bytes of a piece between two notes of how far it is

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  OwnedFd(OwnedFd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~OwnedFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Error fetch_problem(const std::string& path, std::string_view what) {
  return {Code::unavailable, fmt::format("{}: cannot {}: {}", path, what, std::strerror(errno))};
}

Status write_all_at(int fd, const std::string& path, const void* bytes, std::size_t count,
                    std::uint64_t at) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t n = ::pwrite(fd, from, count, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fetch_problem(path, "write");
    from += n;
    count -= static_cast<std::size_t>(n);
    at += static_cast<std::uint64_t>(n);
  }
  return {};
}

// How far each piece of a file is, on disk beside it.
class PieceNotes {
 public:
  // Notes of other sizes are begun anew.
  Status open(const std::string& path, std::uint64_t size, std::uint64_t piece) {
    path_ = path;
    fd_ = OwnedFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (fd_.get() < 0) return fetch_problem(path, "open");
    const std::uint64_t count = size == 0 ? 1 : (size + piece - 1) / piece;
    piece_ = piece;
    size_ = size;
    got_.assign(count, 0);
    std::vector<std::uint64_t> stored(count + 2);
    const std::size_t bytes = stored.size() * sizeof(std::uint64_t);
    const bool good = ::pread(fd_.get(), stored.data(), bytes, 0) == static_cast<ssize_t>(bytes) &&
                      stored[0] == size && stored[1] == piece;
    for (std::uint64_t i = 0; good && i < count; ++i)
      got_[i] = std::min(stored[i + 2], end(i) - begin(i));
    if (good) return {};
    if (::ftruncate(fd_.get(), 0) != 0) return fetch_problem(path, "empty");
    const std::uint64_t head[] = {size, piece};
    TRY_STATUS(write_all_at(fd_.get(), path, head, sizeof head, 0));
    for (std::uint64_t i = 0; i < count; ++i) TRY_STATUS(note(i, 0));
    return {};
  }

  std::uint64_t count() const { return got_.size(); }
  std::uint64_t begin(std::uint64_t i) const { return i * piece_; }
  std::uint64_t end(std::uint64_t i) const { return std::min(size_, (i + 1) * piece_); }
  std::uint64_t got(std::uint64_t i) const { return got_[i]; }
  Status note(std::uint64_t i, std::uint64_t bytes) {  // one thread per piece
    got_[i] = bytes;
    return write_all_at(fd_.get(), path_, &bytes, sizeof bytes, (i + 2) * sizeof bytes);
  }

 private:
  std::string path_;
  OwnedFd fd_;
  std::uint64_t size_ = 0, piece_ = 1;
  std::vector<std::uint64_t> got_;
};

// Of the whole file, as the hub names it: SHA-256, or SHA-1 as Git has it.
Result<std::string> digest_of_fd(int fd, const std::string& path, const HubFile& file) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> md(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  CHECK(md &&
        EVP_DigestInit_ex(md.get(), file.is_sha256() ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
  if (!file.is_sha256()) {
    const std::string head = fmt::format("blob {}", file.size);
    EVP_DigestUpdate(md.get(), head.c_str(), head.size() + 1);
  }
  std::vector<char> buffer(1 << 20);
  for (std::uint64_t at = 0;;) {
    const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fetch_problem(path, "read");
    if (n == 0) break;
    EVP_DigestUpdate(md.get(), buffer.data(), static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(md.get(), digest, &length);
  return to_hex(std::span(digest, length));
}

bool is_there(const std::string& path, std::uint64_t size) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         static_cast<std::uint64_t>(info.st_size) == size;
}

// Room for what is still to come, so that a disk is not filled for nothing.
Status check_free(const std::string& path, std::uint64_t wanted) {
  struct statvfs disk {};
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (::statvfs(folder.c_str(), &disk) != 0) return {};
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= wanted) return {};
  return Error{
      Code::exhausted,
      fmt::format("{}: {:.1f} GB are still to come and {:.1f} GB are free; "
                  "make room, or set HF_HOME to a folder on another disk",
                  folder, static_cast<double>(wanted) / 1e9, static_cast<double>(free) / 1e9)};
}

struct Fetching {
  const HubName& name;
  const std::string& commit;
  const HubFile& file;
  const FetchOptions& options;
  const std::string& part;
  int fd;
  PieceNotes& notes;
  bool ranged;

  std::atomic<std::uint64_t> next{0}, done{0};
  std::atomic<bool> over{false};
  std::mutex mutex = {};  // of the next, and of progress
  Status failed = {};

  Status piece(HubClient& hub, std::uint64_t i) {
    const std::uint64_t begin = notes.begin(i), end = notes.end(i);
    std::uint64_t at = begin + (ranged ? notes.got(i) : 0), noted = at;
    if (at == end) return {};
    const auto take = [&](std::string_view bytes) -> Status {
      if (over) return Error{Code::cancelled, "another piece failed"};
      TRY_STATUS(write_all_at(fd, part, bytes.data(), bytes.size(), at));
      at += bytes.size();
      done += bytes.size();
      if (at - noted >= kNoteEvery || at == end) {
        TRY_STATUS(notes.note(i, at - begin));
        noted = at;
      }
      if (options.progress) {
        const std::lock_guard lock(mutex);
        options.progress(done);
      }
      return {};
    };
    const Status read = hub.read(name, commit, file, at, ranged ? end : 0, take);
    if (!read.ok() && ranged) TRY_STATUS(notes.note(i, at - begin));
    return read;
  }

  void work() {
    auto hub = HubClient::open(options.access, options.log);
    Status status = hub.ok() ? Status() : Status(hub.error());
    while (status.ok() && !over) {
      const std::uint64_t i = next++;
      if (i >= notes.count()) return;
      status = piece(hub.value(), i);
    }
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (!over.exchange(true)) failed = status;
  }
};

// All pieces. Code::unsupported: the hub sends whole files only.
Status fetch_pieces(const HubName& name, const std::string& commit, const HubFile& file,
                    const FetchOptions& options, const std::string& part, int fd, PieceNotes& notes,
                    bool ranged) {
  Fetching f{.name = name,
             .commit = commit,
             .file = file,
             .options = options,
             .part = part,
             .fd = fd,
             .notes = notes,
             .ranged = ranged};
  for (std::uint64_t i = 0; ranged && i < notes.count(); ++i) f.done += notes.got(i);
  const auto count = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(ranged ? std::max(options.connections, 1u) : 1, notes.count()));
  std::vector<std::thread> threads;
  for (std::uint32_t i = 1; i < count; ++i) threads.emplace_back([&f] { f.work(); });
  f.work();
  for (std::thread& t : threads) t.join();
  return f.failed;
}

}  // namespace

Status fetch_file(const HubName& name, const std::string& commit, const HubFile& file,
                  const std::string& target, const FetchOptions& options) {
  if (is_there(target, file.size)) {
    if (options.progress) options.progress(file.size);
    return {};
  }
  const std::string part = target + ".quire-part", done = target + ".quire-done";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(target).parent_path(), error);
  const OwnedFd fd(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (fd.get() < 0) return fetch_problem(part, "open");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (options.log) options.log(file.path + ": another process fetches it; waiting for that one");
    while (::flock(fd.get(), LOCK_EX) != 0)
      if (errno != EINTR) return fetch_problem(part, "lock");
    // The other one has renamed or removed what this one holds: look again.
    return fetch_file(name, commit, file, target, options);
  }
  struct stat held {
  }, named{};
  if (::fstat(fd.get(), &held) != 0 || ::stat(part.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino)
    return fetch_file(name, commit, file, target, options);
  const auto forget = [&] {
    ::unlink(part.c_str());
    ::unlink(done.c_str());
  };
  Status fetched;
  if (file.size > 0) {
    const std::uint64_t here = static_cast<std::uint64_t>(held.st_blocks) * 512;
    TRY_STATUS(check_free(part, file.size - std::min(file.size, here)));
    PieceNotes notes;
    if (held.st_size == 0) ::unlink(done.c_str());  // notes about bytes that are gone
    TRY_STATUS(notes.open(done, file.size, options.piece_bytes));
    if (::ftruncate(fd.get(), static_cast<off_t>(file.size)) != 0)
      return fetch_problem(part, "set the length of");
    fetched = fetch_pieces(name, commit, file, options, part, fd.get(), notes, true);
    if (!fetched.ok() && fetched.error().code == Code::unsupported) {
      PieceNotes whole;
      TRY_STATUS(whole.open(done, file.size, file.size));
      fetched = fetch_pieces(name, commit, file, options, part, fd.get(), whole, false);
    }
  } else if (::ftruncate(fd.get(), 0) != 0) {
    return fetch_problem(part, "empty");
  }
  if (!fetched.ok()) {
    if (fetched.error().code == Code::corrupt) forget();
    return fetched;
  }
  TRY(const std::string digest, digest_of_fd(fd.get(), part, file));
  if (digest != file.digest) {
    forget();
    return Error{Code::corrupt,
                 fmt::format("{}: its digest is {}, the hub says {}; it was removed. "
                             "Fetch it again; if that happens twice, something on the "
                             "way changes it",
                             file.path, digest, file.digest)};
  }
  if (::fsync(fd.get()) != 0) return fetch_problem(part, "save");
  if (::rename(part.c_str(), target.c_str()) != 0) return fetch_problem(target, "name");
  ::unlink(done.c_str());
  return {};
}

}  // namespace quire
