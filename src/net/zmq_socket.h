// net/zmq_socket.h - a ZeroMQ socket that is bound to one address, used by one thread. zmq_socket.cc is
// the only file that sees libzmq; without it (scripts/setup --events) bind() says so.
//
//   TRY(auto socket, ZmqSocket::bind(ZmqKind::publisher, "tcp://127.0.0.1:5557", {}));
//   socket->send({{topic, number, payload}});
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

enum class ZmqKind : std::uint8_t {
  publisher,  // PUB: what a slow subscriber cannot take is dropped for it
  router,  // ROUTER: the first frame is the peer's id; a peer that cannot take more is waited for
};

struct ZmqOptions {
  int messages_max = 100'000;  // that wait for one peer
  std::string curve_secret =
      {};  // 40 characters (Z85): only peers that know the public key connect
};

class ZmqSocket {
 public:
  static Result<std::unique_ptr<ZmqSocket>> bind(ZmqKind kind, const std::string& endpoint,
                                                 const ZmqOptions& options);
  ~ZmqSocket();

  const std::string& endpoint() const;  // with the port that was chosen
  enum class Sent : std::uint8_t { yes, full, gone };
  Sent send(std::span<const std::string_view> frames);  // never waits
  // The frames of a message; none: there is none.
  std::optional<std::vector<std::string>> receive();
  bool wait(std::chrono::milliseconds limit);  // for a message

 private:
  struct Inside;
  explicit ZmqSocket(std::unique_ptr<Inside> inside);
  std::unique_ptr<Inside> inside_;
};

// The address to bind to. "*" is this machine only, unless `open` allows others; an address that others
// can reach is an error without it.
Result<std::string> event_endpoint(const std::string& endpoint, bool open);

}  // namespace quire
