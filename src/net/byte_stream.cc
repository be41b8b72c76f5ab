#include "net/byte_stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace quire {
namespace {

struct FreeContext {
  void operator()(SSL_CTX* c) const { SSL_CTX_free(c); }
};
struct FreeSsl {
  void operator()(SSL* s) const { SSL_free(s); }
};

std::string tls_reason() {
  char text[256] = "unknown reason";
  if (const unsigned long code = ERR_get_error()) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return text;
}

}  // namespace

struct ByteStream::State {
  std::string where;  // for messages
  StreamOptions options;
  int fd = -1;
  std::unique_ptr<SSL_CTX, FreeContext> context;
  std::unique_ptr<SSL, FreeSsl> tls;

  ~State() {
    tls.reset();
    if (fd >= 0) ::close(fd);
  }

  Error problem(const std::string& what) const {
    return {Code::unavailable, fmt::format("{}: {}", where, what)};
  }

  // Waits until the socket can be read or written.
  Status wait(short what) const {
    pollfd p{.fd = fd, .events = what, .revents = 0};
    const timespec limit{options.patience / 1'000'000'000, options.patience % 1'000'000'000};
    int ready;
    do {
      ready = ::ppoll(&p, 1, &limit, nullptr);
    } while (ready < 0 && errno == EINTR);
    if (ready == 0)
      return problem(fmt::format("no answer for {} ms", options.patience / 1'000'000));
    return ready < 0 ? Status(problem(std::strerror(errno))) : Status{};
  }

  // After an SSL call that did not work: waits for what it wants.
  Status wait_for_tls(int result) const {
    switch (SSL_get_error(tls.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return wait(POLLIN);
      case SSL_ERROR_WANT_WRITE:
        return wait(POLLOUT);
      default:
        return problem("TLS: " + tls_reason());
    }
  }

  Status open(const addrinfo& address) {
    fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return problem(std::strerror(errno));
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return {};
    if (errno != EINPROGRESS) return problem(std::strerror(errno));
    TRY_STATUS(wait(POLLOUT));
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? Status{} : Status(problem(std::strerror(error)));
  }

  Status begin_tls(const std::string& host) {
    context.reset(SSL_CTX_new(TLS_client_method()));
    if (!context) return problem("TLS: " + tls_reason());
    SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    const bool trusted =
        options.ca_file.empty()
            ? SSL_CTX_set_default_verify_paths(context.get()) == 1
            : SSL_CTX_load_verify_locations(context.get(), options.ca_file.c_str(), nullptr) == 1;
    if (!trusted) return problem("TLS: no certificates to trust: " + tls_reason());
    tls.reset(SSL_new(context.get()));
    if (!tls || SSL_set_fd(tls.get(), fd) != 1) return problem("TLS: " + tls_reason());
    SSL_set_tlsext_host_name(tls.get(), host.c_str());
    in6_addr ignored;
    const bool number = ::inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
                        ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
    if (number)
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls.get()), host.c_str());
    else
      SSL_set1_host(tls.get(), host.c_str());
    for (int result; (result = SSL_connect(tls.get())) != 1;) TRY_STATUS(wait_for_tls(result));
    return {};
  }
};

ByteStream::ByteStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
ByteStream::ByteStream(ByteStream&&) noexcept = default;
ByteStream& ByteStream::operator=(ByteStream&&) noexcept = default;
ByteStream::~ByteStream() = default;

Result<ByteStream> ByteStream::connect(const std::string& host, std::uint16_t port,
                                       const StreamOptions& options) {
  const std::string where = fmt::format("{}:{}", host, port);
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int e = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found))
    return Error{Code::unavailable, fmt::format("{}: {}", where, ::gai_strerror(e))};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
  Status status = Error{Code::unavailable, where + ": has no address"};
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    auto state = std::make_unique<State>();
    state->where = where;
    state->options = options;
    status = state->open(*a);
    if (!status.ok()) continue;
    if (options.tls) status = state->begin_tls(host);
    if (!status.ok()) return status.error();
    return ByteStream(std::move(state));
  }
  return status.error();
}

void ByteStream::set_patience(Nanoseconds patience) { state_->options.patience = patience; }

Status ByteStream::write(std::span<const std::byte> bytes) {
  State& s = *state_;
  while (!bytes.empty()) {
    std::size_t sent = 0;
    if (s.tls) {
      const int result = SSL_write_ex(s.tls.get(), bytes.data(), bytes.size(), &sent);
      if (result != 1) {
        TRY_STATUS(s.wait_for_tls(result));
        continue;
      }
    } else {
      const ssize_t n = ::send(s.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        TRY_STATUS(s.wait(POLLOUT));
        continue;
      }
      if (n < 0) return s.problem(std::strerror(errno));
      sent = static_cast<std::size_t>(n);
    }
    bytes = bytes.subspan(sent);
  }
  return {};
}

Result<std::size_t> ByteStream::read(std::span<std::byte> to) {
  State& s = *state_;
  while (true) {
    if (s.tls) {
      std::size_t got = 0;
      const int result = SSL_read_ex(s.tls.get(), to.data(), to.size(), &got);
      if (result == 1) return got;
      if (SSL_get_error(s.tls.get(), result) == SSL_ERROR_ZERO_RETURN) return std::size_t{0};
      TRY_STATUS(s.wait_for_tls(result));
      continue;
    }
    const ssize_t n = ::recv(s.fd, to.data(), to.size(), 0);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return s.problem(std::strerror(errno));
    TRY_STATUS(s.wait(POLLIN));
  }
}

}  // namespace quire
