#include "net/http_client.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace quire {

struct HttpClient::Connection {
  int fd = -1;
  std::uint64_t request = 0;
  bool busy = false, used_before = false, writing = false;
  Nanoseconds began = 0;
  int error = 0;        // why sending failed
  std::string message;  // what is sent, kept until an answer begins
  std::size_t sent = 0;
  ResponseReader reader;
};

namespace {

std::string reason(std::string_view what, int error) {
  return fmt::format("{}: {}", what, std::strerror(error));
}

}  // namespace

HttpClient::HttpClient(const Endpoint& endpoint, Listener& listener, std::string headers)
    : endpoint_(endpoint),
      listener_(listener),
      headers_(std::move(headers)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      buffer_(std::size_t{64} << 10, '\0') {
  CHECK(epoll_ >= 0);
}

HttpClient::~HttpClient() {
  for (auto& c : connections_)
    if (c->fd >= 0) ::close(c->fd);
  ::close(epoll_);
}

void HttpClient::post(std::uint64_t request, std::string_view path, std::string_view body) {
  begin(request, fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
                             "Content-Length: {}\r\n{}\r\n{}",
                             path, endpoint_.host, body.size(), headers_, body));
}

void HttpClient::get(std::uint64_t request, std::string_view path) {
  begin(request,
        fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n{}\r\n", path, endpoint_.host, headers_));
}

void HttpClient::begin(std::uint64_t request, std::string message) {
  ++in_flight_;
  Connection* c = nullptr;
  if (!idle_.empty()) {
    c = idle_.back();
    idle_.pop_back();
  } else if (!spare_.empty()) {
    c = spare_.back();
    spare_.pop_back();
  } else {
    connections_.push_back(std::make_unique<Connection>());
    c = connections_.back().get();
  }
  c->request = request;
  c->busy = true;
  c->began = now();
  c->message = std::move(message);
  c->sent = 0;
  c->error = 0;
  c->reader = {};
  if (c->fd < 0 && !open(*c)) return;
  writable(*c);
}

bool HttpClient::open(Connection& c) {
  c.used_before = false;
  c.fd = socket(endpoint_.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int error = c.fd < 0 ? errno : 0;
  if (c.fd >= 0) {
    const int on = 1;
    setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c.fd, reinterpret_cast<const sockaddr*>(&endpoint_.address),
                endpoint_.address_bytes) != 0 &&
        errno != EINPROGRESS)
      error = errno;
  }
  if (error == 0) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.ptr = &c;
    CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &event) == 0);
    c.writing = false;
    return true;
  }
  failed_.push_back({c.request, reason("cannot connect to " + endpoint_.host, error)});
  c.busy = false;
  close(c);
  return false;
}

void HttpClient::watch(Connection& c, bool write) {
  if (c.writing == write) return;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | (write ? EPOLLOUT : 0u);
  event.data.ptr = &c;
  CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event) == 0);
  c.writing = write;
}

void HttpClient::writable(Connection& c) {
  while (c.sent < c.message.size()) {
    const ssize_t n =
        send(c.fd, c.message.data() + c.sent, c.message.size() - c.sent, MSG_NOSIGNAL);
    if (n > 0) {
      c.sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == ENOTCONN) {
      return watch(c, true);
    } else {
      c.error = errno;  // reading goes on: an answer may have come before
      return watch(c, false);
    }
  }
  watch(c, false);
}

void HttpClient::readable(Connection& c) {
  const ResponseReader::OnEvent on_event = [&](std::string_view data) {
    listener_.event(c.request, now(), data);
  };
  while (c.fd >= 0) {
    const ssize_t n = recv(c.fd, buffer_.data(), buffer_.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      const int error = n < 0 ? errno : c.error;
      if (!c.busy) return close(c);
      c.reader.end_of_input(on_event);
      if (c.reader.state() == ResponseReader::State::done) return finish(c, {});
      if (c.reader.status() == 0 && c.used_before) return closed_by_peer(c);
      return finish(c, {.error = error ? reason(endpoint_.host, error)
                                       : endpoint_.host + " closed the connection too early"});
    }
    if (!c.busy) return close(c);  // bytes nobody asked for
    switch (c.reader.feed({buffer_.data(), static_cast<std::size_t>(n)}, on_event)) {
      case ResponseReader::State::done:
        return finish(c, {});
      case ResponseReader::State::broken:
        return finish(c, {.error = "the answer is not HTTP/1.1 as we know it"});
      default:
        break;
    }
  }
}

// A kept connection may be closed just as it is used again: that is no failure of the request.
void HttpClient::closed_by_peer(Connection& c) {
  ::close(c.fd);
  c.fd = -1;
  c.sent = 0;
  c.reader = {};
  if (open(c)) writable(c);
}

void HttpClient::finish(Connection& c, HttpEnding ending) {
  ending.status = c.reader.status();
  ending.body = c.reader.body();
  if (ending.error.empty() && ending.status != 200)
    ending.error = fmt::format("status {}", ending.status);
  const bool keep = ending.error.empty() && c.reader.keep_alive();
  c.busy = false;
  c.used_before = true;
  c.message.clear();
  if (keep)
    idle_.push_back(&c);
  else
    close(c);
  --in_flight_;
  listener_.end(c.request, now(), ending);
}

void HttpClient::close(Connection& c) {
  if (c.fd >= 0) ::close(c.fd);
  c.fd = -1;
  std::erase(idle_, &c);
  spare_.push_back(&c);
}

void HttpClient::poll(int ms_max) {
  for (std::size_t i = 0; i < failed_.size(); ++i) {
    const Failed failed = failed_[i];
    --in_flight_;
    listener_.end(failed.request, now(), {.error = failed.error});
  }
  if (!failed_.empty()) ms_max = 0;
  failed_.clear();
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(epoll_, events.data(), events.size(), ms_max);
  for (int i = 0; i < count; ++i) {
    Connection& c = *static_cast<Connection*>(events[i].data.ptr);
    if (c.fd < 0) continue;  // ended by an earlier event of this round
    if (events[i].events & EPOLLOUT) writable(c);
    if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) readable(c);
  }
}

void HttpClient::expire(Nanoseconds age) {
  const Nanoseconds oldest = now() - age;
  for (std::size_t i = 0; i < connections_.size(); ++i)
    if (Connection& c = *connections_[i]; c.busy && c.began < oldest) {
      finish(c, {.error = fmt::format("no answer within {} s", age / 1'000'000'000)});
    }
}

Result<std::string> http_fetch(const Endpoint& endpoint, std::string_view path,
                               std::string_view body, std::string headers) {
  struct Waiter : HttpClient::Listener {
    void event(std::uint64_t, Nanoseconds, std::string_view) override {}
    void end(std::uint64_t, Nanoseconds, const HttpEnding& e) override { ending = e; }
    HttpEnding ending;
  } waiter;
  HttpClient client(endpoint, waiter, std::move(headers));
  if (body.empty())
    client.get(0, path);
  else
    client.post(0, path, body);
  while (client.in_flight() > 0) {
    client.poll(1000);
    client.expire(std::int64_t{120} * 1'000'000'000);
  }
  const HttpEnding& e = waiter.ending;
  if (e.error.empty()) return e.body;
  return Error{Code::unavailable, fmt::format("http://{}{}: {}{}{}", endpoint.host, path, e.error,
                                              e.body.empty() ? "" : ", ", e.body.substr(0, 300))};
}

}  // namespace quire
