// net/response_reader.h - an HTTP/1.1 response, read as its bytes arrive. HttpClient has one for each
// connection.
//
// A body of type text/event-stream is handed out event by event (the joined `data:` lines), any
// other is collected, or goes to whoever asked for it (ResponseParts). How the bytes are cut into
// reads makes no difference.
//
//   ResponseReader reader;
//   reader.feed(bytes, [](std::string_view data) { ... });   // as often as bytes come
//   reader.end_of_input();                                   // when the peer has closed
//   if (reader.state() == ResponseReader::State::done && reader.status() == 200) ...
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "net/http.h"

namespace quire {

// What the caller wants besides status and body. Everything must outlive the reader.
struct ResponseParts {
  std::vector<HttpHeader>* headers = nullptr;  // where they go
  // Gets the bytes of every body, instead of body(). False: the rest is not wanted, which breaks the
  // response.
  const std::function<bool(std::string_view)>* body = nullptr;
  bool head_only = false;  // the answer to HEAD: no body follows, whatever its length says
};

class ResponseReader {
 public:
  enum class State : std::uint8_t { head, body, done, broken };
  using OnEvent = std::function<void(std::string_view data)>;

  ResponseReader() = default;
  explicit ResponseReader(ResponseParts parts) : parts_(parts) {}

  State feed(std::string_view bytes, const OnEvent& on_event);
  // The peer closed the connection. This ends a body without a length; any other is incomplete.
  State end_of_input(const OnEvent& on_event);

  State state() const { return state_; }
  int status() const { return status_; }
  bool keep_alive() const { return keep_alive_; }
  const std::string& body() const { return body_; }  // empty for event streams

 private:
  enum class Body : std::uint8_t { until_close, sized, chunk_size, chunk, chunk_end, trailer };

  void head_line(std::string_view line);
  void head_done();
  void chunk_line(std::string_view line);
  void take_body(std::string_view bytes, const OnEvent& on_event);
  void event_line(std::string_view line, const OnEvent& on_event);
  std::size_t take_line(std::string_view bytes);
  void finish(const OnEvent& on_event);
  void give_up() { state_ = State::broken; }

  ResponseParts parts_;
  State state_ = State::head;
  Body mode_ = Body::until_close;
  int status_ = 0;
  bool keep_alive_ = true, event_stream_ = false, chunked_ = false, sized_ = false;
  bool line_ready_ = false, has_data_ = false;
  std::uint64_t left_ = 0;         // bytes of the body or the chunk still to come
  std::size_t head_bytes_ = 0;     // a head that never ends is refused
  std::string line_;               // a line of the head or of a chunk's frame
  std::string event_line_, data_;  // an unfinished line and the event collected so far
  std::string body_;
};

}  // namespace quire
