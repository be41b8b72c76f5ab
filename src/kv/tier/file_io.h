// kv/tier/file_io.h - the files under a tier: batches of aligned reads and writes, and the few other
// things that a folder needs.
//
// `Files` is the system (system_files(): io_uring, or a few threads where there is none), or a
// double that misbehaves on purpose (kv/tier/faulty_files.h). Its run() is as honest as the system
// calls: a request may be short or interrupted. transfer() goes on until all is done, and is what
// everybody uses. Offsets, sizes and addresses are multiples of kFileAlign (O_DIRECT). Files belong
// to one thread.
//
//   std::unique_ptr<Files> files = system_files();
//   TRY(const FileId file, files->open(path, OpenFor::append));
//   IoRequest write{.file = file, .write = true, .at = 0, .bytes = buffer.span()};
//   transfer(*files, {&write, 1}, [](std::size_t) {});
//   if (write.error != 0) ...                                  // an errno
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

inline constexpr std::size_t kFileAlign = 4096;
inline constexpr std::uint64_t kWholeFileMax = std::uint64_t{1} << 30;
constexpr std::uint64_t align_up(std::uint64_t n, std::uint64_t to = kFileAlign) {
  return (n + to - 1) / to * to;
}
constexpr std::uint64_t align_down(std::uint64_t n, std::uint64_t to = kFileAlign) {
  return n / to * to;
}

enum class FileId : std::uint32_t {};
enum class OpenFor : std::uint8_t { reading, writing };  // writing: also reads; made if missing

struct IoRequest {
  FileId file{};
  bool write = false;
  std::uint64_t at = 0;
  std::span<std::byte> bytes = {};
  // Filled in.
  std::size_t done = 0;  // bytes
  int error = 0;         // errno; 0 with done < bytes: the file ended
};

struct FileEntry {
  std::string name;
  std::uint64_t bytes = 0;
  bool folder = false;
};

class Files {
 public:
  virtual ~Files() = default;
  virtual std::string_view way() const = 0;  // "io_uring", "threads"

  virtual Result<FileId> open(const std::string& path, OpenFor what) = 0;
  virtual void close(FileId file) = 0;
  // Each request once: done is what the system moved. `ended(i)` after each, on this thread.
  virtual void run(std::span<IoRequest> requests,
                   const std::function<void(std::size_t)>& ended) = 0;
  virtual Status sync(FileId file) = 0;  // fdatasync

  // Small files as a whole. They are replaced through a temporary name; `durable` also syncs.
  // A file of more than kWholeFileMax is refused.
  virtual Result<std::string> read_whole(const std::string& path) = 0;
  virtual Status write_whole(const std::string& path, std::string_view bytes, bool durable) = 0;
  virtual Status remove(const std::string& path) = 0;
  // Makes a folder that only its owner can enter, and those above it, if they are not there. Refuses one that others can
  // write to.
  virtual Status make_folder(const std::string& path) = 0;
  virtual Result<std::vector<FileEntry>> list(const std::string& folder) = 0;
  // Held until closed. `exhausted` if somebody else holds it.
  virtual Result<FileId> lock(const std::string& path) = 0;
};

// Runs requests until each is complete, failed, or at the end of its file. Interrupted and short
// ones are continued.
void transfer(Files& files, std::span<IoRequest> requests,
              const std::function<void(std::size_t)>& ended);

enum class SystemFiles : std::uint8_t { best, threads };
std::unique_ptr<Files> system_files(SystemFiles which = SystemFiles::best);

// "no space left on device" and the like, for messages.
std::string errno_text(int error);

// Memory that reads and writes may use, aligned to kFileAlign.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);

  void grow(std::size_t bytes) {  // forgets what it holds
    if (bytes > size_) *this = AlignedBuffer(bytes);
  }
  std::span<std::byte> span() const { return {memory_.get(), size_}; }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace quire
