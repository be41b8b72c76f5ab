// net/local_exchange.h - a request that is answered within the process: no socket, no port.
//
// A program that embeds the server hands it a LocalExchange and reads the answer from another thread,
// whole or as it comes:
//
//   auto x = std::make_shared<LocalExchange>(request, [&](auto f) { server.post(std::move(f)); });
//   server.take(x);
//   for (std::string bytes; x->read(bytes);) use(bytes);      // waits; x->status() is known by then
//
// Exchange's own functions run on the server's thread, those below on any other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "net/http.h"

namespace quire {

class LocalExchange final : public Exchange, public std::enable_shared_from_this<LocalExchange> {
 public:
  using Post = std::function<void(std::function<void()>)>;  // runs it on the server's thread

  LocalExchange(HttpRequest request, Post post, std::size_t queue_bytes_max = 64 << 10);
  ~LocalExchange() override;

  // Waits until there is something to read; false at the end. `bytes` is replaced.
  bool read(std::string& bytes);
  // Does not wait: false if nothing is there yet. At the end it is true with no bytes.
  bool try_read(std::string& bytes);
  // False: nothing came in so long.
  bool wait(std::chrono::milliseconds limit);
  int status();  // waits until it is decided; 0: the server ended without an answer
  void leave();  // the reader wants no more
  // Is readable while try_read() has something to say. For event loops.
  int descriptor() const { return descriptor_; }

  void post(std::function<void()> function) override { post_(std::move(function)); }
  void respond(HttpResponse response) override;
  void begin(HttpResponse head) override;
  bool write(std::string_view bytes) override;
  void end() override;
  bool began() const override { return began_; }
  bool over() const override { return ended_ || lost_; }
  std::uint64_t bytes_sent() const override { return bytes_; }

 private:
  void decide(int status);
  void add(std::string_view bytes, bool last);
  bool take(std::string& bytes, std::unique_lock<std::mutex>& lock);
  void forget_callbacks();

  const Post post_;
  const std::size_t queue_bytes_max_;
  const int descriptor_;
  std::atomic<bool> began_ = false, ended_ = false, lost_ = false;
  std::uint64_t bytes_ = 0;
  bool full_ = false;  // write() said so

  std::mutex mutex_;  // of what follows
  std::condition_variable news_;
  std::string waiting_;
  int status_ = 0;
  bool whole_ = false;  // nothing comes after `waiting_`
};

}  // namespace quire
