// kv/tier/io_queue.h - how a batch of reads and writes reaches the kernel: io_uring or threads.
//
// system_files() (kv/tier/file_io.h) owns one. A request names its descriptor here.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "kv/tier/file_io.h"

namespace quire {

struct RawIo {
  int fd;
  IoRequest* request;  // file is not looked at
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;
  virtual std::string_view way() const = 0;
  virtual void run(std::span<RawIo> requests, const std::function<void(std::size_t)>& ended) = 0;
};

std::unique_ptr<IoQueue> uring_queue();  // null where the system or the build has no io_uring
std::unique_ptr<IoQueue> thread_queue();

}  // namespace quire
