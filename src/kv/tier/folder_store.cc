#include "kv/tier/folder_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/byte_size.h"
#include "base/number.h"
#include "kv/tier/store_tier.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSmallestCapacity = 1 << 20;

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode)) {}
  OpenFile(const OpenFile&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

class FolderStore final : public ValueStore {
 public:
  FolderStore(std::string path, const FolderStoreOptions& options)
      : path_(std::move(path)), options_(options) {}

  Status contains(std::span<const std::string> names, std::span<std::uint8_t> there) override {
    TRY_STATUS(look_at_folder());
    for (std::size_t i = 0; i < names.size(); ++i) {
      there[i] = ::access(place(names[i]).c_str(), R_OK) == 0;
      moved();
    }
    return {};
  }

  Status get(std::span<const std::string> names, const Got& got) override {
    TRY_STATUS(look_at_folder());
    for (std::size_t i = 0; i < names.size(); ++i) {
      moved();
      const OpenFile file(place(names[i]),
                          O_RDONLY | O_NONBLOCK);  // a pipe would wait for a writer
      if (!file) {
        if (errno == ENOENT || errno == ELOOP) continue;
        return problem("cannot be read");
      }
      struct stat info {};
      if (::fstat(file.fd(), &info) != 0) return problem("cannot be read");
      if (!S_ISREG(info.st_mode) || static_cast<std::uint64_t>(info.st_size) > kStoredValueMax)
        continue;
      value_.resize(static_cast<std::size_t>(info.st_size));
      TRY(const std::size_t size, read_all(file.fd()));
      if (options_.capacity_bytes) ::futimens(file.fd(), nullptr);  // it was used now
      got(i, std::span(value_).first(size));
    }
    return {};
  }

  Status put(std::span<const NamedValue> values) override {
    for (const NamedValue& v : values) {
      TRY_STATUS(make_room(v.value.size()));
      const std::string to = place(v.name), folder = to.substr(0, to.rfind('/'));
      std::error_code error;
      fs::create_directories(folder, error);
      const std::string beside = fmt::format("{}/.new-{}-{}", folder, ::getpid(), ++serial());
      if (const Status s = write_file(beside, v.value); !s.ok()) {
        ::unlink(beside.c_str());
        return s;
      }
      if (::rename(beside.c_str(), to.c_str()) != 0) {
        const Status s = problem("cannot be written");
        ::unlink(beside.c_str());
        return s;
      }
      used_ += v.value.size();
    }
    return {};
  }

  Status erase(std::span<const std::string> names) override {
    for (const std::string& name : names) {
      if (::unlink(place(name).c_str()) != 0 && errno != ENOENT) return problem("cannot be erased");
      moved();
    }
    return {};
  }

 private:
  static std::atomic<std::uint64_t>& serial() {
    static std::atomic<std::uint64_t> next{0};
    return next;
  }
  // 256 folders keep listings short.
  std::string place(const std::string& name) const {
    return fmt::format("{}/{}/{}.qkv", path_, name.substr(0, 2), name);
  }
  Status problem(const char* what) const {
    return Error{errno == ENOSPC || errno == EDQUOT ? Code::exhausted : Code::unavailable,
                 fmt::format("{}: {}: {}", path_, what, std::strerror(errno))};
  }
  Status look_at_folder() const {
    return ::access(path_.c_str(), R_OK | X_OK) == 0 ? Status{} : problem("cannot be read");
  }

  // A file that is shorter than it was a moment ago gives what there is.
  Result<std::size_t> read_all(int fd) {
    std::size_t size = 0;
    while (size < value_.size()) {
      const ssize_t n = ::read(fd, value_.data() + size, value_.size() - size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return problem("cannot be read").error();
      if (n == 0) break;
      moved();
      size += static_cast<std::size_t>(n);
    }
    return size;
  }

  Status write_file(const std::string& path, std::span<const std::byte> bytes) const {
    const OpenFile file(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (!file) return problem("cannot be written");
    while (!bytes.empty()) {
      const ssize_t n = ::write(file.fd(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return problem("cannot be written");
      moved();
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }

  struct Stored {
    fs::file_time_type used;
    std::uint64_t bytes;
    fs::path path;
  };

  // Counts the folder again when this process thinks that it is full: others write and erase, too.
  Status make_room(std::uint64_t bytes) {
    if (options_.capacity_bytes == 0) return {};
    if (bytes > options_.capacity_bytes)
      return Error{Code::exhausted, path_ + ": a value is larger than the bound of the folder"};
    if (known_ && used_ + bytes <= options_.capacity_bytes) return {};
    std::vector<Stored> files;
    std::error_code error;
    used_ = 0;
    for (fs::recursive_directory_iterator it(path_, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code ignored;
      moved();
      if (!it->is_regular_file(ignored)) continue;
      files.push_back({it->last_write_time(ignored), it->file_size(ignored), it->path()});
      used_ += files.back().bytes;
    }
    if (error) return Error{Code::unavailable, path_ + ": " + error.message()};
    known_ = true;
    if (used_ + bytes <= options_.capacity_bytes) return {};
    std::ranges::sort(files, {}, &Stored::used);
    const std::uint64_t wanted =
        std::max<std::uint64_t>(bytes, options_.capacity_bytes / 10);  // not a file at a time
    for (const Stored& f : files) {
      if (used_ + wanted <= options_.capacity_bytes) break;
      std::error_code ignored;
      if (fs::remove(f.path, ignored)) used_ -= f.bytes;
      moved();
    }
    return {};
  }

  const std::string path_;
  const FolderStoreOptions options_;
  std::vector<std::byte> value_;
  std::uint64_t used_ = 0;  // when it was last counted, and what was written since
  bool known_ = false;
};

}  // namespace

Result<std::unique_ptr<ValueStore>> open_folder_store(const std::string& path,
                                                      const FolderStoreOptions& options) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return Error{Code::unavailable, path + ": is not a folder; make it, or mount it, first"};
  return std::unique_ptr<ValueStore>(std::make_unique<FolderStore>(path, options));
}

Result<FolderPlace> parse_folder_url(std::string_view url) {
  const auto bad = [](std::string_view why) {
    return Error{Code::invalid,
                 fmt::format("a folder is written file:///FOLDER, from the root, with "
                             "three slashes, and ?max=100GiB behind it: {}",
                             why)};
  };
  FolderPlace place;
  if (!url.starts_with("file:///")) return bad("it begins otherwise");
  const std::size_t mark = std::min(url.find('?'), url.size());
  place.path = url.substr(7, mark - 7);
  if (place.path.size() < 2) return bad("no folder is named");
  std::string_view options = url.substr(std::min(mark + 1, url.size()));
  while (!options.empty()) {
    const std::size_t end = std::min(options.find('&'), options.size());
    const std::string_view option = options.substr(0, end);
    options.remove_prefix(std::min(end + 1, options.size()));
    std::uint32_t ms = 0;
    if (option.starts_with("max=")) {
      TRY(place.capacity_bytes, parse_size(std::string(option.substr(4))));
      if (place.capacity_bytes < kSmallestCapacity) return bad("max is 1MiB or more");
    } else if (option.starts_with("patience=") && parse_number(option.substr(9), ms) && ms > 0 &&
               ms <= 60000) {
      place.patience = Nanoseconds{ms} * 1'000'000;
    } else {
      return bad(fmt::format("'{}' is no option", option));
    }
  }
  return place;
}

namespace {

Result<std::unique_ptr<Tier>> open_folder_tier(const TierSettings& settings, const std::string&) {
  TRY(const FolderPlace place, parse_folder_url(settings.place));
  const auto open = [place] {
    return open_folder_store(place.path, {.capacity_bytes = place.capacity_bytes});
  };
  return open_store_tier(settings, open, place.patience, place.capacity_bytes);
}

}  // namespace

extern const TierKind kFolderTierKind = {
    "file", "a folder that several machines mount: file:///FOLDER", open_folder_tier};

}  // namespace quire
