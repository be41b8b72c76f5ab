// The only file that sees Boost.Beast: it takes long to compile.
#include "net/http_server.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>

#include <atomic>
#include <map>
#include <mutex>

#include "net/live_exchange.h"

namespace quire {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::uint64_t kSmallBody = 16 << 10;

struct Shared {  // by every connection of a server
  HttpServerOptions options;
  HttpServer::Handler handler;
  std::atomic<bool> draining{false};
  std::atomic<std::uint64_t> open{0}, total{0}, refused{0}, requests{0}, dropped{0};
  std::atomic<std::uint64_t> body_bytes{0};  // of bodies that nobody has read yet

  std::mutex mutex;  // of the next
  std::map<std::string, std::uint32_t, std::less<>> per_address;

  bool enter(const std::string& address) {
    const std::lock_guard lock(mutex);
    return ++per_address[address] <= options.connections_per_address_max;
  }
  void leave(const std::string& address) {
    const std::lock_guard lock(mutex);
    if (const auto at = per_address.find(address); at != per_address.end() && --at->second == 0)
      per_address.erase(at);
  }

  HttpResponse refuse(int status, std::string message) const {
    if (options.refuse) return options.refuse(status, std::move(message));
    return {.status = status,
            .headers = {{"Content-Type", "text/plain"}},
            .body = std::move(message) + "\n"};
  }
};

// A body's share of what all bodies may take.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~BodyShare() { shared_->body_bytes -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  void grow(std::uint64_t bytes) {
    bytes_ += bytes;
    shared_->body_bytes += bytes;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Shared> shared_;
  std::uint64_t bytes_ = 0;
};

// Only "chunked" is understood. What another coding hides would be taken for the next request.
bool understood(const http::request_header<>& head) {
  const auto fields = head.equal_range(http::field::transfer_encoding);
  if (fields.first == fields.second) return true;
  return std::next(fields.first) == fields.second && head.version() >= 11 &&
         beast::iequals(fields.first->value(), "chunked");
}

}  // namespace

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shared> shared, std::shared_ptr<Loop> loop, tcp::socket socket)
      : shared_(std::move(shared)),
        loop_(std::move(loop)),
        socket_(std::move(socket)),
        deadline_(loop_->io) {
    ++shared_->open;
    ++shared_->total;
  }
  ~Connection() { --shared_->open; }

  asio::awaitable<void> run() {
    const auto self = shared_from_this();
    loop_->connections.insert(this);
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
    const auto remote = socket_.remote_endpoint(ignored);
    peer_ = ignored ? "" : remote.address().to_string();
    const bool welcome = shared_->enter(peer_);
    if (!welcome || shared_->open > shared_->options.connections_max) {
      ++shared_->refused;
      HttpResponse busy = shared_->refuse(503, "too many connections are open; try again later");
      co_await answer_and_close(std::move(busy));
    } else {
      while (co_await serve_one()) {
      }
    }
    shared_->leave(peer_);
    loop_->connections.erase(this);
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  void close_idle() {  // nothing is under way: the client would only wait
    if (idle_) socket_.cancel();
  }
  void close() {
    if (exchange_) exchange_->lose();
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  using Parser = http::request_parser<http::buffer_body>;

  // Reads a request, has it answered and sends the answer. False: the connection is over.
  asio::awaitable<bool> serve_one() {
    const HttpServerOptions& limits = shared_->options;
    Parser parser;
    parser.header_limit(limits.header_bytes_max);
    parser.body_limit(limits.body_bytes_max);

    timed_out_ = false;
    if (buffer_.size() == 0) {  // an idle connection is closed without a word
      idle_ = true;
      arm(limits.idle_timeout);
      const auto [error, bytes] = co_await socket_.async_read_some(buffer_.prepare(4096), kAwait);
      idle_ = false;
      if (error) co_return false;
      buffer_.commit(bytes);
    }
    arm(limits.header_timeout);
    const auto [error, read] = co_await http::async_read_header(socket_, buffer_, parser, kAwait);
    if (error) co_return co_await refuse_request(error);

    const auto& head = parser.get();
    if (!understood(head) || head.count(http::field::host) > 1) {
      co_await answer_and_close(
          shared_->refuse(400, head.count(http::field::host) > 1
                                   ? "more than one Host header"
                                   : "the only Transfer-Encoding that is taken is chunked"));
      co_return false;
    }
    HttpRequest request = request_head(head);
    if (!parser.is_done() && shared_->options.admit && !shared_->options.admit(request)) {
      disarm();
      request.body_unread = true;
      co_await answer(std::move(request), false);
      co_await linger();
      co_return false;
    }
    if (beast::iequals(head[http::field::expect], "100-continue") && head.version() >= 11) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      if (!co_await send(kContinue)) co_return false;
    }
    if (!parser.is_done()) {
      const bool whole = co_await read_body(parser, request);
      if (!whole) co_return false;
    }
    disarm();
    ++shared_->requests;
    co_return co_await answer(std::move(request), parser.keep_alive());
  }

  asio::awaitable<bool> read_body(Parser& parser, HttpRequest& request) {
    const HttpServerOptions& limits = shared_->options;
    const auto began = std::chrono::steady_clock::now();
    auto share = std::make_shared<BodyShare>(shared_);
    request.body_share = share;
    reading_ = share.get();
    evicted_ = false;
    std::string part(kReadBytes, '\0');
    error_code failed;
    while (!parser.is_done() && !failed) {
      parser.get().body().data = part.data();
      parser.get().body().size = part.size();
      const auto end = began + limits.body_total_timeout +
                       std::chrono::seconds(request.body.size() / limits.body_bytes_per_second);
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      arm(std::clamp(left, std::chrono::milliseconds(0), limits.body_timeout));
      std::size_t count = 0;
      std::tie(failed, count) = co_await http::async_read_some(socket_, buffer_, parser, kAwait);
      if (failed == http::error::need_buffer) failed = {};
      const std::size_t bytes = part.size() - parser.get().body().size;
      request.body.append(part.data(), bytes);
      share->grow(bytes);
      make_room();
      if (evicted_) break;
    }
    reading_ = nullptr;
    share.reset();  // the request has it now
    if (evicted_) {
      request.drop_body();
      co_await answer_and_close(
          shared_->refuse(503, "other requests fill the memory for bodies; try again later"));
      co_return false;
    }
    if (!failed) co_return true;
    request.drop_body();
    co_return co_await refuse_request(failed);
  }

  // The largest body on its way gives way, so that whoever sends little is never in danger.
  void make_room() {
    const std::uint64_t max =
        std::max(shared_->options.bodies_bytes_max, shared_->options.body_bytes_max);
    if (shared_->body_bytes <= max) return;
    Connection* largest = nullptr;
    std::uint64_t leaving = 0;
    for (Connection* c : loop_->connections) {
      if (c->reading_ == nullptr || c->reading_->bytes() <= kSmallBody) continue;
      if (c->evicted_)
        leaving += c->reading_->bytes();
      else if (largest == nullptr || c->reading_->bytes() > largest->reading_->bytes())
        largest = c;
    }
    if (largest == nullptr || shared_->body_bytes - leaving <= max) return;
    largest->evicted_ = true;
    if (largest != this) largest->socket_.cancel();
  }

  asio::awaitable<bool> answer(HttpRequest request, bool keep_alive) {
    exchange_ =
        std::make_shared<LiveExchange>(loop_, std::move(request), keep_alive && !shared_->draining,
                                       shared_->options.queue_bytes_max);
    const std::shared_ptr<LiveExchange> x = exchange_;
    watch(x);
    try {
      shared_->handler(x);
    } catch (const std::exception& e) {
      fmt::print(stderr, "error: a request handler failed: {}\n", e.what());
      if (x->began_)
        x->lose();
      else
        x->respond(shared_->refuse(500, "internal error"));
    }
    while (!x->lost_) {
      if (!x->out_.empty()) {
        std::string sending;
        sending.swap(x->out_);
        if (!co_await send(sending)) {
          ++shared_->dropped;
          x->lose();
        } else if (x->full_ && !x->over()) {
          x->full_ = false;
          if (x->drained) x->drained();
        }
      } else if (x->ended_) {
        break;
      } else {
        x->wake_.expires_after(shared_->options.keep_alive_interval);
        const auto [error] = co_await x->wake_.async_wait(kAwait);
        if (!error && x->began_ && !x->over()) x->write(x->idle_text_);
      }
    }
    x->forget_callbacks();
    exchange_ = nullptr;
    error_code ignored;
    socket_.cancel(ignored);  // the watch
    co_return x->keep_alive_ && !x->lost_ && !shared_->draining;
  }

  // Notices when the client goes away while its answer is made. Bytes it sends meanwhile stay
  // unread.
  void watch(std::shared_ptr<LiveExchange> x) {
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), x](error_code error) {
      if (error || x->over()) return;
      char byte;
      const ssize_t n = ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n > 0) return;
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch(x);
      x->lose();
      self->socket_.cancel(error);  // a write that is stuck
    });
  }

  // Sets a time limit for the next operation; when it has passed, the operation is cancelled and
  // timed_out_ is true.
  void arm(std::chrono::milliseconds limit) {
    timed_out_ = false;
    deadline_.expires_after(limit);
    deadline_.async_wait([self = weak_from_this(), armed = ++armed_](error_code error) {
      const auto c = self.lock();
      if (error || !c || c->armed_ != armed) return;
      c->timed_out_ = true;
      c->socket_.cancel(error);
    });
  }
  void disarm() {
    ++armed_;
    deadline_.cancel();
  }

  asio::awaitable<bool> send(std::string_view bytes) {
    while (!bytes.empty()) {
      error_code error;
      std::size_t sent = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
      if (error == asio::error::would_block) {
        arm(shared_->options.write_timeout);
        std::tie(error, sent) =
            co_await socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), kAwait);
        disarm();
      }
      if (error) co_return false;
      bytes.remove_prefix(sent);
    }
    co_return true;
  }

  asio::awaitable<bool> refuse_request(error_code error) {
    int status = 400;
    std::string message = "this is not HTTP: " + error.message();
    if (error == http::error::header_limit) {
      status = 431;
      message =
          fmt::format("the headers are longer than {} bytes", shared_->options.header_bytes_max);
    } else if (error == http::error::buffer_overflow) {
      status = 431;
      message = "a chunk extension or a trailer is too long";
    } else if (error == http::error::body_limit) {
      status = 413;
      message = fmt::format("the body is longer than {} bytes (--max-body)",
                            shared_->options.body_bytes_max);
    } else if (timed_out_) {
      status = 408;
      message = "the request did not arrive in time";
    } else if (error.category() != make_error_code(http::error::end_of_stream).category() ||
               error == http::error::end_of_stream || error == http::error::partial_message) {
      co_return false;  // the connection broke: nobody is there to be told
    }
    co_await answer_and_close(shared_->refuse(status, std::move(message)));
    co_return false;
  }

  // Closing while the client still sends would reset the connection and lose the answer. So the
  // server reads and drops bytes for a moment.
  asio::awaitable<void> answer_and_close(HttpResponse response) {
    const std::string bytes = serialize(response, false, false, true);
    const bool sent = co_await send(bytes);
    if (!sent) co_return;
    co_await linger();
  }

  asio::awaitable<void> linger() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    std::string part(kReadBytes, '\0');
    arm(std::chrono::seconds(2));
    for (std::uint64_t total = 0; total < 2 * shared_->options.body_bytes_max;) {
      const auto [error, bytes] = co_await socket_.async_read_some(asio::buffer(part), kAwait);
      if (error) co_return;
      total += bytes;
    }
  }

  HttpRequest request_head(const Parser::value_type& head) const {
    HttpRequest request;
    request.method = std::string(head.method_string());
    std::string_view target(head.target().data(), head.target().size());
    if (const std::size_t scheme = target.find("://");
        scheme != target.npos && scheme < target.find('/')) {  // as sent to a proxy
      const std::size_t slash = target.find('/', scheme + 3);
      target = slash == target.npos ? "/" : target.substr(slash);
    }
    target = target.substr(0, target.find('#'));
    const std::size_t question = target.find('?');
    request.path = std::string(target.substr(0, question));
    if (question != target.npos) request.query = std::string(target.substr(question + 1));
    for (const auto& field : head)
      request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
    request.peer = peer_;
    request.http_1_1 = head.version() >= 11;
    return request;
  }

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Loop> loop_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  std::uint64_t armed_ = 0;
  bool timed_out_ = false;
  beast::flat_buffer buffer_{kReadBytes + shared_->options.header_bytes_max};
  std::string peer_;
  std::shared_ptr<LiveExchange> exchange_;
  const BodyShare* reading_ = nullptr;  // while a body arrives
  bool idle_ = false, evicted_ = false;
};

namespace {

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpServerOptions& options, Handler handler)
      : shared_(std::make_shared<Shared>()) {
    shared_->options = options;
    shared_->handler = std::move(handler);
    for (std::uint32_t i = 0; i < std::max(1u, options.threads); ++i)
      loops_.push_back(std::make_shared<Loop>());
    acceptor_.emplace(loops_.front()->io);
  }
  ~BeastServer() override { stop(); }

  void run() {
    for (const auto& loop : loops_) loop->thread = std::thread([loop] { loop->io.run(); });
  }

  Status listen() {
    const HttpServerOptions& o = shared_->options;
    const auto failed = [&](const error_code& error) {
      return Error{Code::unavailable, fmt::format("cannot listen on {}:{}: {}; is another server "
                                                  "there? choose another --port",
                                                  o.host, o.port, error.message())};
    };
    error_code error;
    tcp::resolver resolver(loops_.front()->io);
    const auto found = resolver.resolve(o.host, std::to_string(o.port), error);
    if (error || found.empty()) return failed(error);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_->open(endpoint.protocol(), error);
    if (error) return failed(error);
    acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
    acceptor_->bind(endpoint, error);
    if (error) return failed(error);
    acceptor_->listen(1024, error);
    if (error) return failed(error);
    port_ = acceptor_->local_endpoint().port();
    asio::co_spawn(loops_.front()->io, accept(), asio::detached);
    return {};
  }

  std::uint16_t port() const override { return port_; }
  HttpCounters counters() const override {
    return {shared_->open, shared_->total, shared_->refused, shared_->requests, shared_->dropped};
  }
  void post(std::function<void()> function) override {
    asio::post(loops_.front()->io, std::move(function));
  }
  void drain() override {
    shared_->draining = true;
    for (const auto& loop : loops_)
      asio::post(loop->io, [loop] {
        for (Connection* c : loop->connections) c->close_idle();
      });
  }
  void stop() override {
    if (!acceptor_) return;
    if (loops_.front()->thread.joinable())
      asio::post(loops_.front()->io, [this] {
        error_code ignored;
        acceptor_->close(ignored);
      });
    shared_->draining = true;
    for (const auto& loop : loops_) {
      if (!loop->thread.joinable()) continue;  // it never ran, nor would what is posted to it
      asio::post(loop->io, [loop] {
        const std::unordered_set<Connection*> all = loop->connections;
        for (Connection* c : all) c->close();
        loop->work.reset();
      });
      loop->thread.join();
    }
    acceptor_.reset();  // loops stay: what is posted from now on is never run
  }

 private:
  asio::awaitable<void> accept() {
    std::size_t next = 0;
    while (acceptor_->is_open()) {
      const std::shared_ptr<Loop> loop = loops_[next++ % loops_.size()];
      auto [error, socket] = co_await acceptor_->async_accept(loop->io, kAwait);
      if (error == asio::error::operation_aborted) co_return;
      if (error) {  // out of descriptors: wait until some come back
        asio::steady_timer timer(loops_.front()->io, std::chrono::milliseconds(100));
        co_await timer.async_wait(kAwait);
        continue;
      }
      auto connection = std::make_shared<Connection>(shared_, loop, std::move(socket));
      asio::co_spawn(
          loop->io, [connection] { return connection->run(); }, asio::detached);
    }
  }

  std::shared_ptr<Shared> shared_;
  std::vector<std::shared_ptr<Loop>> loops_;
  std::optional<tcp::acceptor> acceptor_;
  std::uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options,
                                                      Handler handler) {
  auto server = std::make_unique<BeastServer>(options, std::move(handler));
  if (options.listen) TRY_STATUS(server->listen());
  server->run();
  return std::unique_ptr<HttpServer>(std::move(server));
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  return !error && address.is_loopback();
}

}  // namespace quire
