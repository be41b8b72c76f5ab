#include "net/zmq_socket.h"

#include "net/http_server.h"

#ifdef QUIRE_ZMQ
#include <zmq.h>

#include <array>
#endif

namespace quire {

Result<std::string> event_endpoint(const std::string& endpoint, bool open) {
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6) return endpoint;
  const std::size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with("tcp://") || colon == std::string::npos || colon <= 6 ||
      colon + 1 == endpoint.size())
    return Error{Code::invalid,
                 "'" + endpoint + "' is no address; write tcp://HOST:PORT or ipc://PATH"};
  std::string host = endpoint.substr(6, colon - 6);
  const std::string port = endpoint.substr(colon + 1);
  if (host == "*") host = open ? "0.0.0.0" : "127.0.0.1";
  if (!open && !is_loopback(host))
    return Error{Code::invalid,
                 host +
                     " can be reached from other machines, and events hold the tokens "
                     "of every tenant; give --kv-events-public, or use 127.0.0.1"};
  return "tcp://" + host + ":" + port;
}

#ifdef QUIRE_ZMQ

struct ZmqSocket::Inside {
  void* context = nullptr;
  void* socket = nullptr;
  std::string endpoint;

  ~Inside() {
    if (socket) zmq_close(socket);
    if (context) zmq_ctx_term(context);
  }
  bool set(int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
  }
};

ZmqSocket::ZmqSocket(std::unique_ptr<Inside> inside) : inside_(std::move(inside)) {}
ZmqSocket::~ZmqSocket() = default;
const std::string& ZmqSocket::endpoint() const { return inside_->endpoint; }

Result<std::unique_ptr<ZmqSocket>> ZmqSocket::bind(ZmqKind kind, const std::string& endpoint,
                                                   const ZmqOptions& options) {
  const auto failed = [&](const std::string& what) {
    return Error{Code::unavailable, endpoint + ": " + what + ": " + zmq_strerror(zmq_errno())};
  };
  auto inside = std::make_unique<Inside>();
  inside->context = zmq_ctx_new();
  inside->socket = zmq_socket(inside->context, kind == ZmqKind::publisher ? ZMQ_PUB : ZMQ_ROUTER);
  if (inside->socket == nullptr) return failed("cannot open a socket");
  constexpr int kLingerMs = 200;
  constexpr std::int64_t kRequestMax = 1024;
  bool set = inside->set(ZMQ_SNDHWM, options.messages_max) && inside->set(ZMQ_LINGER, kLingerMs) &&
             zmq_setsockopt(inside->socket, ZMQ_MAXMSGSIZE, &kRequestMax, sizeof kRequestMax) == 0;
  if (kind == ZmqKind::router) set = set && inside->set(ZMQ_ROUTER_MANDATORY, 1);
  if (!options.curve_secret.empty())
    set = set && inside->set(ZMQ_CURVE_SERVER, 1) &&
          zmq_setsockopt(inside->socket, ZMQ_CURVE_SECRETKEY, options.curve_secret.c_str(),
                         options.curve_secret.size() + 1) == 0;
  if (!set) return failed("cannot set its options");
  if (zmq_bind(inside->socket, endpoint.c_str()) != 0) return failed("cannot listen");
  std::array<char, 512> bound{};
  std::size_t size = bound.size();
  if (zmq_getsockopt(inside->socket, ZMQ_LAST_ENDPOINT, bound.data(), &size) == 0)
    inside->endpoint = bound.data();
  return std::unique_ptr<ZmqSocket>(new ZmqSocket(std::move(inside)));
}

ZmqSocket::Sent ZmqSocket::send(std::span<const std::string_view> frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    if (zmq_send(inside_->socket, frames[i].data(), frames[i].size(), flags) < 0)
      return zmq_errno() == EAGAIN ? Sent::full : Sent::gone;
  }
  return Sent::yes;
}

std::optional<std::vector<std::string>> ZmqSocket::receive() {
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    const bool got = zmq_msg_recv(&message, inside_->socket, ZMQ_DONTWAIT) >= 0;
    if (got)
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = got && zmq_msg_more(&message);
    zmq_msg_close(&message);
    if (!got) return std::nullopt;
  }
  return frames;
}

bool ZmqSocket::wait(std::chrono::milliseconds limit) {
  zmq_pollitem_t item{inside_->socket, 0, ZMQ_POLLIN, 0};
  return zmq_poll(&item, 1, static_cast<long>(limit.count())) > 0;
}

#else

struct ZmqSocket::Inside {
  std::string endpoint;
};

ZmqSocket::ZmqSocket(std::unique_ptr<Inside> inside) : inside_(std::move(inside)) {}
ZmqSocket::~ZmqSocket() = default;
const std::string& ZmqSocket::endpoint() const { return inside_->endpoint; }
Result<std::unique_ptr<ZmqSocket>> ZmqSocket::bind(ZmqKind, const std::string&, const ZmqOptions&) {
  return Error{Code::unsupported,
               "this build has no ZeroMQ; run scripts/setup --events and build again"};
}
ZmqSocket::Sent ZmqSocket::send(std::span<const std::string_view>) { return Sent::gone; }
std::optional<std::vector<std::string>> ZmqSocket::receive() { return std::nullopt; }
bool ZmqSocket::wait(std::chrono::milliseconds) { return false; }

#endif

}  // namespace quire
