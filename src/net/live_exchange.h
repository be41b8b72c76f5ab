// net/live_exchange.h - a request that is being answered over a socket: what its handler has
// written and the connection has not sent yet. Used by net/http_server.cc alone.
//
// The connection sends `out_`, sleeps on `wake_` while there is nothing to send, and calls lose()
// when the client is gone.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>

#include "net/http.h"

namespace quire {

class Connection;  // net/http_server.cc
namespace asio = boost::asio;

// One I/O thread and the connections that live on it.
struct Loop {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::unordered_set<Connection*> connections;  // this thread's
  std::thread thread;
};

class LiveExchange final : public Exchange {
 public:
  LiveExchange(std::shared_ptr<Loop> loop, HttpRequest request, bool keep_alive,
               std::uint32_t queue_bytes_max)
      : loop_(std::move(loop)),
        wake_(loop_->io),
        keep_alive_(keep_alive),
        queue_bytes_max_(queue_bytes_max) {
    request_ = std::move(request);
  }

  void post(std::function<void()> function) override { asio::post(loop_->io, std::move(function)); }

  void respond(HttpResponse response) override {
    if (over() || began_) return;
    began_ = ended_ = true;
    keep_alive_ = keep_alive_ && !response.close;
    decide(response);
    const bool has_body = response.status != 204 && response.status != 304;
    add(serialize(response, false, keep_alive_, has_body));
    if (has_body && request_.method == "HEAD") out_.resize(out_.size() - response.body.size());
  }

  void begin(HttpResponse head) override {
    if (over() || began_) return;
    began_ = true;
    decide(head);
    chunked_ = request_.http_1_1;
    keep_alive_ = keep_alive_ && chunked_ && !head.close;
    idle_text_ = std::move(head.idle_text);
    add(serialize(head, chunked_, keep_alive_, false));
  }

  bool write(std::string_view bytes) override {
    if (over()) return true;
    if (chunked_) {
      std::string framed;
      append_chunk(framed, bytes);
      add(framed);
    } else {
      add(bytes);
    }
    full_ = out_.size() > queue_bytes_max_;
    return !full_;
  }

  void end() override {
    if (over()) return;
    if (chunked_) add("0\r\n\r\n");
    ended_ = true;
    wake_.cancel();
  }

  bool began() const override { return began_; }
  bool over() const override { return ended_ || lost_; }
  std::uint64_t bytes_sent() const override { return bytes_; }

  void lose() {
    if (lost_) return;
    const bool early = !ended_;
    lost_ = true;
    wake_.cancel();
    if (early && gone) gone();
    forget_callbacks();
  }
  void forget_callbacks() {  // they may hold this very object
    gone = nullptr;
    answered = nullptr;
    drained = nullptr;
  }

  std::shared_ptr<Loop> loop_;  // before the timer that runs on it
  asio::steady_timer wake_;     // cancelled when there is something to do
  std::string out_, idle_text_;
  bool began_ = false, ended_ = false, lost_ = false, chunked_ = false, full_ = false;
  bool keep_alive_;

 private:
  void decide(HttpResponse& response) {
    for (HttpHeader& h : common_headers) response.headers.push_back(std::move(h));
    if (answered) answered(response.status);
  }
  void add(std::string_view bytes) {
    out_ += bytes;
    bytes_ += bytes.size();
    wake_.cancel();
  }

  std::uint32_t queue_bytes_max_;
  std::uint64_t bytes_ = 0;
};

}  // namespace quire
