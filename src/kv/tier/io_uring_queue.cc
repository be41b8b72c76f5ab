#include "kv/tier/io_queue.h"

#if QUIRE_URING
#include <liburing.h>

#include <algorithm>
#include <cerrno>

namespace quire {
namespace {

class UringQueue final : public IoQueue {
 public:
  static std::unique_ptr<IoQueue> make() {
    auto queue = std::make_unique<UringQueue>();
    if (::io_uring_queue_init(kDepth, &queue->ring_, 0) < 0) return nullptr;
    queue->ready_ = true;
    // An old kernel has the ring but not these operations.
    io_uring_probe* const probe = ::io_uring_get_probe_ring(&queue->ring_);
    const bool usable = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                        io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe != nullptr) ::io_uring_free_probe(probe);
    if (!usable) return nullptr;
    return queue;
  }
  ~UringQueue() override {
    if (ready_) ::io_uring_queue_exit(&ring_);
  }
  std::string_view way() const override { return "io_uring"; }

  void run(std::span<RawIo> requests, const std::function<void(std::size_t)>& ended) override {
    std::size_t next = 0, in_flight = 0;
    while (next < requests.size() || in_flight > 0) {
      for (; next < requests.size() && in_flight < kDepth; ++next, ++in_flight) {
        io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
        CHECK(entry != nullptr);
        const IoRequest& r = *requests[next].request;
        const auto size = static_cast<unsigned>(std::min(r.bytes.size(), kAtOnce));
        if (r.write)
          ::io_uring_prep_write(entry, requests[next].fd, r.bytes.data(), size, r.at);
        else
          ::io_uring_prep_read(entry, requests[next].fd, r.bytes.data(), size, r.at);
        ::io_uring_sqe_set_data(entry, reinterpret_cast<void*>(next));
      }
      const int waited = ::io_uring_submit_and_wait(&ring_, 1);
      CHECK(waited >= 0 || waited == -EINTR || waited == -EAGAIN || waited == -EBUSY);
      io_uring_cqe* completion = nullptr;
      while (::io_uring_peek_cqe(&ring_, &completion) == 0 && completion != nullptr) {
        const auto i = reinterpret_cast<std::size_t>(::io_uring_cqe_get_data(completion));
        IoRequest& r = *requests[i].request;
        if (completion->res < 0)
          r.error = -completion->res;
        else
          r.done = static_cast<std::size_t>(completion->res);
        ::io_uring_cqe_seen(&ring_, completion);
        --in_flight;
        ended(i);
      }
    }
  }

 private:
  static constexpr unsigned kDepth = 64;
  static constexpr std::size_t kAtOnce = std::size_t{1} << 30;
  io_uring ring_{};
  bool ready_ = false;
};

}  // namespace

std::unique_ptr<IoQueue> uring_queue() { return UringQueue::make(); }

}  // namespace quire

#else

namespace quire {
std::unique_ptr<IoQueue> uring_queue() { return nullptr; }
}  // namespace quire

#endif
