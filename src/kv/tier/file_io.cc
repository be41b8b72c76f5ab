#include "kv/tier/file_io.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace quire {
namespace {

constexpr int kAttemptsWithoutProgress = 16;

bool worth_repeating(int error) { return error == EINTR || error == EAGAIN; }

}  // namespace

// Works on a copy of the unfinished requests, whose results are added to the caller's.
void transfer(Files& files, std::span<IoRequest> requests,
              const std::function<void(std::size_t)>& ended) {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].done = 0;
    requests[i].error = 0;
    left.push_back(i);
  }
  int idle = 0;
  while (!left.empty()) {
    std::vector<IoRequest> again;
    for (const std::size_t i : left) {
      IoRequest& r = again.emplace_back(requests[i]);
      // A short transfer may end anywhere; the next one begins at the multiple below.
      const std::size_t from = align_down(r.done);
      r.at += from;
      r.bytes = r.bytes.subspan(from);
      r.done = 0;
    }
    std::vector<std::size_t> unfinished;
    bool progress = false;
    files.run(again, [&](std::size_t k) {
      const IoRequest& r = again[k];
      IoRequest& whole = requests[left[k]];
      const std::size_t before = whole.done;
      whole.done = align_down(whole.done) + r.done;
      progress |= whole.done > before;
      const bool complete = whole.done == whole.bytes.size();
      const bool ended_early = r.error == 0 && r.done == 0;  // the file ended
      if (complete || ended_early || (r.error != 0 && !worth_repeating(r.error))) {
        whole.error = complete ? 0 : r.error;
        ended(left[k]);
      } else {
        whole.error = r.error;
        unfinished.push_back(left[k]);
      }
    });
    idle = progress ? 0 : idle + 1;
    if (idle > kAttemptsWithoutProgress) {
      for (const std::size_t i : unfinished) {
        if (requests[i].error == 0) requests[i].error = EIO;
        ended(i);
      }
      return;
    }
    left = std::move(unfinished);
  }
}

std::string errno_text(int error) {
  char text[128];
  return ::strerror_r(error, text, sizeof text);
}

AlignedBuffer::AlignedBuffer(std::size_t bytes) : size_(align_up(bytes)) {
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kFileAlign, size_)));
  if (!memory_) throw std::bad_alloc();
}

void AlignedBuffer::Free::operator()(std::byte* p) const { std::free(p); }

}  // namespace quire
