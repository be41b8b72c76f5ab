// net/http_client.h - many HTTP requests at once over non-blocking sockets, in the caller's thread.
//
// The server sends traces with it (server/tracer.h), and the load generator sends requests. A
// client has one epoll and no thread of its own, so that measuring a server takes little of the
// processor on which that server runs. Connections are kept open and used again.
//
//   HttpClient client(endpoint, listener);
//   client.post(7, endpoint.path("/completions"), body);
//   while (client.in_flight() > 0) client.poll(1000);   // calls listener.event(7, ...) and .end(7, ...)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "net/endpoint.h"
#include "net/response_reader.h"

namespace quire {

// How a request ended. `error` is empty for a whole response with status 200.
struct HttpEnding {
  int status = 0;  // 0: no response
  std::string error = {};
  std::string body = {};  // of a response that is not an event stream
};

class HttpClient {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void event(std::uint64_t request, Nanoseconds at, std::string_view data) = 0;
    virtual void end(std::uint64_t request, Nanoseconds at, const HttpEnding& ending) = 0;
  };

  // `headers` are whole lines ("Authorization: Bearer x\r\n") sent with every request.
  HttpClient(const Endpoint& endpoint, Listener& listener, std::string headers = {});
  HttpClient(const HttpClient&) = delete;
  ~HttpClient();

  // Starts a request. A later poll() tells the listener how it ended.
  void post(std::uint64_t request, std::string_view path, std::string_view body);
  void get(std::uint64_t request, std::string_view path);

  // Waits up to `ms_max` for events and handles all that are there.
  void poll(int ms_max);
  // Ends requests older than `age`.
  void expire(Nanoseconds age);

  std::size_t in_flight() const { return in_flight_; }

 private:
  struct Connection;
  struct Failed {
    std::uint64_t request;
    std::string error;
  };

  void begin(std::uint64_t request, std::string message);
  bool open(Connection& c);
  void writable(Connection& c);
  void readable(Connection& c);
  void closed_by_peer(Connection& c);
  void finish(Connection& c, HttpEnding ending);
  void close(Connection& c);
  void watch(Connection& c, bool write);
  Nanoseconds now() const { return clock_.now(); }

  Endpoint endpoint_;
  Listener& listener_;
  std::string headers_;
  SteadyClock clock_;
  int epoll_ = -1;
  std::size_t in_flight_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;   // open and unused, the latest last
  std::vector<Connection*> spare_;  // closed, to be opened again
  std::vector<Failed> failed_;
  std::string buffer_;
};

// One request and its answer, waited for.
Result<std::string> http_fetch(const Endpoint& endpoint, std::string_view path,
                               std::string_view body, std::string headers = {});

}  // namespace quire
