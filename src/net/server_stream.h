// net/server_stream.h - a connection that the HTTP server accepted: TCP or a socket in the file system, plain or
// TLS. For net/http_server.cc, which alone includes it.
#pragma once

#include <poll.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>

namespace quire {

class ServerStream {
 public:
  using Raw = boost::asio::generic::stream_protocol::socket;
  using Error = boost::system::error_code;

  // `tls`: none for a plain connection.
  ServerStream(Raw raw, boost::asio::ssl::context* tls) : raw_(std::move(raw)) {
    if (tls) tls_ = std::make_unique<boost::asio::ssl::stream<Raw&>>(raw_, *tls);
  }

  bool is_tls() const { return tls_ != nullptr; }
  Raw& raw() { return raw_; }
  using executor_type = Raw::executor_type;
  executor_type get_executor() { return raw_.get_executor(); }
  void cancel() {
    Error ignored;
    raw_.cancel(ignored);
  }
  void close() {
    Error ignored;
    raw_.shutdown(Raw::shutdown_both, ignored);
    raw_.close(ignored);
  }
  // Whether the other side has said that it sends no more, even if bytes before that are unread.
  bool left() {
    pollfd p{.fd = raw_.native_handle(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }

  template <class Token>
  auto async_handshake(Token&& token) {
    return tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Token>(token));
  }
  template <class Token>
  auto async_goodbye(Token&& token) {
    return tls_->async_shutdown(std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return raw_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return raw_.async_write_some(buffers, std::forward<Token>(token));
  }
  // Of plain connections: what can be sent at once.
  template <class Buffers>
  std::size_t write_some(const Buffers& buffers, Error& error) {
    if (!tls_) return raw_.write_some(buffers, error);
    error = boost::asio::error::would_block;
    return 0;
  }

 private:
  Raw raw_;
  std::unique_ptr<boost::asio::ssl::stream<Raw&>> tls_;
};

}  // namespace quire
