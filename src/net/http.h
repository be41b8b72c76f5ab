// net/http.h - what a handler sees of HTTP: a request, an answer, and the exchange that joins them.
//
// The server (net/http_server.h) reads a request and hands an Exchange to the handler on the
// connection's own thread. The handler answers at once, or keeps the pointer and answers later from
// a function that it posts back to that thread:
//
//   void handle(std::shared_ptr<Exchange> x) {
//     if (x->request().path == "/ping") return x->respond({.body = "{}"});
//     worker.run([x] {
//       auto result = slow();
//       x->post([x, result] { x->respond({.body = result}); });
//     });
//   }
//
// A stream is begin(), write() as often as needed, end(). Only post() may be called from any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

struct HttpHeader {
  std::string name, value;
};

struct HttpRequest {
  std::string method;
  std::string path;   // without the query, still percent-encoded
  std::string query;  // without the '?'
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;  // address of the other end, without the port
  bool http_1_1 = true;
  bool body_unread = false;               // there is one, and the server did not want it
  std::shared_ptr<void> body_share = {};  // of the server's memory for bodies, while it lives

  void drop_body() {  // as soon as it was read: others wait for the memory
    std::string().swap(body);
    body_share.reset();
  }

  std::string_view header(std::string_view name) const;  // empty where absent; case does not matter
  std::optional<std::string> parameter(std::string_view name) const;  // of the query, decoded
};

struct HttpResponse {
  int status = 200;
  std::vector<HttpHeader> headers = {};
  std::string body = {};
  std::string idle_text = {};  // of a stream: sent when nothing else was for ten seconds
  bool close = false;          // the connection, afterwards
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  HttpRequest& request() { return request_; }

  virtual void post(std::function<void()> function) = 0;  // runs it on the connection's thread

  virtual void respond(HttpResponse response) = 0;  // a whole answer; ends the exchange
  virtual void begin(HttpResponse head) = 0;        // the head of a stream
  // False if the client reads more slowly than the handler writes. Then pause until `drained` runs.
  // A client that reads nothing for `write_timeout` is dropped.
  virtual bool write(std::string_view bytes) = 0;
  virtual void end() = 0;

  virtual bool began() const = 0;  // the head is out: an error can no longer choose a status
  virtual bool over() const = 0;   // ended, or the client is gone: writing has no effect
  virtual std::uint64_t bytes_sent() const = 0;

  std::vector<HttpHeader> common_headers;    // of whatever answer it gets
  std::function<void(int status)> answered;  // called once, when the status is decided
  std::function<void()> drained;             // there is room again
  std::function<void()> gone;                // the client went away, or was dropped, before the end

 protected:
  HttpRequest request_;
};

bool same_word(std::string_view a, std::string_view b);  // letters' case does not matter
std::string_view status_text(int status);                // "Not Found"
std::string percent_decode(std::string_view text, bool plus_is_space = false);
// Status line, headers and (for a whole answer) the body; `chunked` announces that framing instead.
std::string serialize(const HttpResponse& response, bool chunked, bool keep_alive,
                      bool with_length);
void append_chunk(std::string& out, std::string_view bytes);  // nothing for no bytes
// One server-sent event. `data` holds no line feed; `event` and `id` are left out where empty.
std::string sse(std::string_view data, std::string_view event = {}, std::string_view id = {});
HttpResponse sse_head(std::string idle_text);  // of a stream of events

}  // namespace quire
