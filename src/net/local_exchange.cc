#include "net/local_exchange.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"

namespace quire {
namespace {

int open_event() {
  const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  CHECK(descriptor >= 0);
  return descriptor;
}

}  // namespace

LocalExchange::LocalExchange(HttpRequest request, Post post, std::size_t queue_bytes_max)
    : post_(std::move(post)), queue_bytes_max_(queue_bytes_max), descriptor_(open_event()) {
  request_ = std::move(request);
}

LocalExchange::~LocalExchange() { ::close(descriptor_); }

void LocalExchange::decide(int status) {
  began_ = true;
  {
    const std::lock_guard lock(mutex_);
    status_ = status;
  }
  news_.notify_all();
  if (answered) answered(status);
}

void LocalExchange::add(std::string_view bytes, bool last) {
  bytes_ += bytes.size();
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty() && !whole_) eventfd_write(descriptor_, 1);
    waiting_ += bytes;
    whole_ |= last;
    full_ = waiting_.size() > queue_bytes_max_;
  }
  news_.notify_all();
}

void LocalExchange::respond(HttpResponse response) {
  if (over() || began_) return;
  decide(response.status);
  ended_ = true;
  add(response.body, true);
  forget_callbacks();
}

void LocalExchange::begin(HttpResponse head) {
  if (!over() && !began_) decide(head.status);
}

bool LocalExchange::write(std::string_view bytes) {
  if (over() || bytes.empty()) return true;
  add(bytes, false);
  return !full_;
}

void LocalExchange::end() {
  if (over()) return;
  ended_ = true;
  add({}, true);
  forget_callbacks();
}

// They may hold this very object. One of them may be running.
void LocalExchange::forget_callbacks() {
  post_([self = shared_from_this()] {
    self->gone = nullptr;
    self->answered = nullptr;
    self->drained = nullptr;
  });
}

bool LocalExchange::take(std::string& bytes, std::unique_lock<std::mutex>& lock) {
  bytes.clear();
  bytes.swap(waiting_);
  const bool more = !whole_;
  if (more) {  // at the end the descriptor stays readable
    eventfd_t count = 0;
    eventfd_read(descriptor_, &count);
  }
  lock.unlock();
  if (more && bytes.size() > queue_bytes_max_)
    post_([self = shared_from_this()] {
      if (!std::exchange(self->full_, false) || self->over()) return;
      if (self->drained) self->drained();
    });
  return more;
}

bool LocalExchange::read(std::string& bytes) {
  std::unique_lock lock(mutex_);
  news_.wait(lock, [this] { return whole_ || !waiting_.empty(); });
  take(bytes, lock);
  return !bytes.empty();
}

bool LocalExchange::try_read(std::string& bytes) {
  std::unique_lock lock(mutex_);
  if (!whole_ && waiting_.empty()) return false;
  take(bytes, lock);
  return true;
}

bool LocalExchange::wait(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return news_.wait_for(lock, limit, [this] { return whole_ || !waiting_.empty(); });
}

int LocalExchange::status() {
  std::unique_lock lock(mutex_);
  news_.wait(lock, [this] { return status_ != 0 || whole_; });
  return status_;
}

void LocalExchange::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (!whole_) eventfd_write(descriptor_, 1);
    whole_ = true;
  }
  news_.notify_all();
  post_([self = shared_from_this()] {
    if (self->over()) return;
    self->lost_ = true;
    if (self->gone) self->gone();
    self->forget_callbacks();
  });
}

}  // namespace quire
