#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "kv/tier/io_queue.h"

namespace quire {
namespace {

Error file_error(const std::string& path, const char* verb, int error = errno) {
  return {error == ENOENT ? Code::not_found : Code::unavailable,
          path + ": cannot " + verb + ": " + errno_text(error)};
}

// A link inside the folder could lead a write anywhere, so none is followed. Opening a pipe would
// wait for its other end, so nothing waits, and only plain files are taken.
constexpr int kOpenFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

bool is_plain_file(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

class RealFiles final : public Files {
 public:
  explicit RealFiles(std::unique_ptr<IoQueue> queue) : queue_(std::move(queue)) {}
  ~RealFiles() override {
    for (const int fd : open_)
      if (fd >= 0) ::close(fd);
  }
  std::string_view way() const override { return queue_->way(); }

  Result<FileId> open(const std::string& path, OpenFor what) override {
    const int flags = kOpenFlags | (what == OpenFor::reading ? O_RDONLY : O_RDWR | O_CREAT);
    int fd = ::open(path.c_str(), flags | O_DIRECT, 0600);
    if (fd < 0 && errno == EINVAL) fd = ::open(path.c_str(), flags, 0600);  // e.g. an old tmpfs
    if (fd < 0) return file_error(path, "open");
    if (!is_plain_file(fd)) {
      ::close(fd);
      return file_error(path, "open", EINVAL);
    }
    return keep(fd);
  }

  void close(FileId file) override {
    int& fd = open_[static_cast<std::size_t>(file)];
    CHECK(fd >= 0);
    ::close(std::exchange(fd, -1));
  }

  void run(std::span<IoRequest> requests, const std::function<void(std::size_t)>& ended) override {
    std::vector<RawIo> raw;
    raw.reserve(requests.size());
    for (IoRequest& r : requests) {
      DCHECK(r.at % kFileAlign == 0 && r.bytes.size() % kFileAlign == 0);
      raw.push_back({open_[static_cast<std::size_t>(r.file)], &r});
    }
    queue_->run(raw, ended);
  }

  Status sync(FileId file) override {
    if (::fdatasync(open_[static_cast<std::size_t>(file)]) != 0) return file_error("file", "sync");
    return {};
  }

  Result<std::string> read_whole(const std::string& path) override {
    const int fd = ::open(path.c_str(), kOpenFlags | O_RDONLY);
    if (fd < 0) return file_error(path, "open");
    std::string text;
    struct stat info {};
    int error = ::fstat(fd, &info) != 0 ? errno : 0;
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (error == 0 && !S_ISREG(info.st_mode)) error = EINVAL;
    if (error == 0 && size > kWholeFileMax) error = EFBIG;
    if (error == 0) text.resize(size);
    std::size_t at = 0;
    while (at < text.size()) {
      const ssize_t got = ::read(fd, text.data() + at, text.size() - at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) error = errno;
      if (got <= 0) break;
      at += static_cast<std::size_t>(got);
    }
    ::close(fd);
    if (error != 0) return file_error(path, "read", error);
    text.resize(at);
    return text;
  }

  Status write_whole(const std::string& path, std::string_view bytes, bool durable) override {
    const std::string temporary = path + ".tmp";
    const int fd = ::open(temporary.c_str(), kOpenFlags | O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return file_error(temporary, "create");
    int error = 0;
    while (!bytes.empty() && error == 0) {
      const ssize_t put = ::write(fd, bytes.data(), bytes.size());
      if (put >= 0)
        bytes.remove_prefix(static_cast<std::size_t>(put));
      else if (errno != EINTR)
        error = errno;
    }
    if (error == 0 && durable && ::fdatasync(fd) != 0) error = errno;
    if (::close(fd) != 0 && error == 0) error = errno;
    if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
    if (error == 0) return {};
    ::unlink(temporary.c_str());
    return file_error(path, "write", error);
  }

  Status remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return file_error(path, "remove");
    return {};
  }

  Status make_folder(const std::string& path) override {
    if (::mkdir(path.c_str(), 0700) == 0) return {};
    if (const auto above = path.find_last_of('/');
        errno == ENOENT && above != std::string::npos && above != 0) {
      TRY_STATUS(make_folder(path.substr(0, above)));
      if (::mkdir(path.c_str(), 0700) == 0) return {};
    }
    if (errno != EEXIST) return file_error(path, "create the folder");
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return file_error(path, "look at");
    if (!S_ISDIR(info.st_mode)) return Error{Code::invalid, path + ": is not a folder"};
    if ((info.st_mode & 022) != 0)
      return Error{Code::invalid,
                   path + ": others can write to this folder; chmod 700 it, or use another"};
    return {};
  }

  Result<std::vector<FileEntry>> list(const std::string& folder) override {
    DIR* const dir = ::opendir(folder.c_str());
    if (dir == nullptr) return file_error(folder, "list");
    std::vector<FileEntry> entries;
    while (const dirent* e = ::readdir(dir)) {
      const std::string name = e->d_name;
      struct stat info {};
      if (name == "." || name == ".." ||
          ::fstatat(::dirfd(dir), e->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        continue;
      entries.push_back({name, static_cast<std::uint64_t>(info.st_size), S_ISDIR(info.st_mode)});
    }
    ::closedir(dir);
    std::ranges::sort(entries, {}, &FileEntry::name);
    return entries;
  }

  Result<FileId> lock(const std::string& path) override {
    const int fd = ::open(path.c_str(), kOpenFlags | O_RDWR | O_CREAT, 0600);
    if (fd < 0) return file_error(path, "open");
    if (!is_plain_file(fd)) {
      ::close(fd);
      return file_error(path, "lock", EINVAL);
    }
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(fd);
      if (error == EWOULDBLOCK) return Error{Code::exhausted, path + ": another process holds it"};
      return file_error(path, "lock", error);
    }
    return keep(fd);
  }

 private:
  FileId keep(int fd) {
    const auto free = std::ranges::find(open_, -1);
    const auto at = static_cast<std::size_t>(free - open_.begin());
    if (free == open_.end())
      open_.push_back(fd);
    else
      *free = fd;
    return static_cast<FileId>(at);
  }

  std::unique_ptr<IoQueue> queue_;
  std::vector<int> open_;  // by FileId; -1: closed
};

}  // namespace

std::unique_ptr<Files> system_files(SystemFiles which) {
  std::unique_ptr<IoQueue> queue = which == SystemFiles::best ? uring_queue() : nullptr;
  return std::make_unique<RealFiles>(queue ? std::move(queue) : thread_queue());
}

}  // namespace quire
