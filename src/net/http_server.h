// net/http_server.h - HTTP/1.1 on Boost.Beast: connections, limits, timeouts. Knows no route.
//
//   TRY(auto server, HttpServer::start({.port = 8080}, [](std::shared_ptr<Exchange> x) {
//     x->respond({.body = "hello"});
//   }));
//   server->port();       // where port 0 ended up
//   server->stop();       // closes every connection and joins its threads
//
// Each connection lives on one I/O thread, where its handler and everything it posts run. A stream
// whose client stops reading is dropped after `write_timeout`. The server notices at once when a
// client goes away, because it watches the socket while an answer is made.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/http.h"

namespace quire {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any
  bool listen = true;      // false: there is no port; requests come from this process
  std::uint32_t threads = 1;
  std::uint32_t connections_max = 8192;
  std::uint32_t connections_per_address_max = 6144;
  std::uint32_t header_bytes_max = 16 << 10;
  std::uint64_t body_bytes_max = std::uint64_t{32} << 20;
  // All bodies that are here and not read yet, finished or not; at least body_bytes_max. When they
  // are more, the largest unfinished one is refused. Bodies up to 16 KiB always get in.
  std::uint64_t bodies_bytes_max = std::uint64_t{48} << 20;
  std::uint32_t queue_bytes_max = 64 << 10;  // of a stream; write() says false beyond it
  std::chrono::milliseconds header_timeout = std::chrono::seconds(10);  // for all of it
  std::chrono::milliseconds body_timeout = std::chrono::seconds(10);    // between two parts of it
  // For all of the body: so long, and a second more for every body_bytes_per_second.
  std::chrono::milliseconds body_total_timeout = std::chrono::seconds(30);
  std::uint64_t body_bytes_per_second = 16 << 10;
  std::chrono::milliseconds idle_timeout = std::chrono::seconds(75);  // between two requests
  std::chrono::milliseconds write_timeout = std::chrono::seconds(30);
  std::chrono::milliseconds keep_alive_interval = std::chrono::seconds(10);
  // Whether the body is worth reading, asked when the header is there. If not, the handler sees the
  // request with `body_unread`, and the connection ends with its answer.
  std::function<bool(const HttpRequest& head)> admit = {};
  // The body of an answer that the server gives itself: 400, 408, 413, 431, 500, 503.
  std::function<HttpResponse(int status, std::string message)> refuse = {};
};

struct HttpCounters {
  std::uint64_t connections_open = 0, connections_total = 0, connections_refused = 0;
  std::uint64_t requests_total = 0, clients_dropped = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;

  // The error says which address could not be listened on.
  static Result<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options,
                                                   Handler handler);
  virtual ~HttpServer() = default;

  virtual std::uint16_t port() const = 0;
  virtual HttpCounters counters() const = 0;
  virtual void post(std::function<void()> function) = 0;  // onto the first I/O thread
  // Answers end their connections from now on, and idle ones are closed.
  virtual void drain() = 0;
  virtual void stop() = 0;
};

bool is_loopback(const std::string& host);

}  // namespace quire
