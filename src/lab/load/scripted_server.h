// lab/load/scripted_server.h - for tests: a server of one thread per connection that answers with text
// at known times.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"

namespace quire::load {

// What one request is answered with: pieces of text, each after a pause.
struct Script {
  std::vector<std::pair<double, std::string>> pieces;  // (seconds before it, text)
  Json usage;
  int status = 200;
  bool hang_up = false;  // close in the middle of the stream
};

class ScriptedServer {
 public:
  using Answer = std::function<Script(const std::string& path, const Json& body)>;

  explicit ScriptedServer(Answer answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    CHECK(listen(listener_, 1024) == 0);
    CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& t : workers_) t.join();
  }

  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::size_t connections() {
    const std::lock_guard lock(mutex_);
    return workers_.size();
  }
  std::vector<Json> bodies() {  // of all requests, in the order they came
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  void accept_all() {
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      workers_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    std::string bytes;
    while (answer_one(fd, bytes)) {
    }
    const std::lock_guard lock(mutex_);
    std::erase(open_, fd);
    ::close(fd);
  }

  bool answer_one(int fd, std::string& bytes) {
    const auto more = [&] {
      char buffer[4096];
      const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
      if (n > 0) bytes.append(buffer, static_cast<std::size_t>(n));
      return n > 0;
    };
    std::size_t head = 0;
    while ((head = bytes.find("\r\n\r\n")) == std::string::npos)
      if (!more()) return false;
    std::size_t length = 0;
    if (const std::size_t at = bytes.find("Content-Length: "); at < head)
      length = std::stoul(bytes.substr(at + 16));
    while (bytes.size() < head + 4 + length)
      if (!more()) return false;
    const std::size_t path = bytes.find(' ') + 1;
    const std::string route = bytes.substr(path, bytes.find(' ', path) - path);
    const Json body = length ? Json::parse(bytes.substr(head + 4, length)) : Json();
    bytes.erase(0, head + 4 + length);
    {
      const std::lock_guard lock(mutex_);
      bodies_.push_back(body);
    }
    return send_answer(fd, answer_(route, body), body.is_object() && body.value("stream", false));
  }

  static bool send_all(int fd, const std::string& text) {
    return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  static std::string chunk(const std::string& text) {
    return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
  }

  static bool send_answer(int fd, const Script& script, bool stream) {
    std::string whole;
    for (const auto& [pause, text] : script.pieces) whole += text;
    if (!stream || script.status != 200) {
      const Json answer{{"usage", script.usage}, {"data", {{{"id", "scripted"}}}}};
      const std::string body = script.status == 200 ? answer.dump() : whole;
      return send_all(fd, fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\n"
                                      "Content-Length: {}\r\n\r\n{}",
                                      script.status, body.size(), body));
    }
    if (!send_all(fd,
                  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n"))
      return false;
    for (const auto& [pause, text] : script.pieces) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      const Json event{{"choices", {{{"index", 0}, {"delta", {{"content", text}}}}}}};
      if (!send_all(fd, chunk("data: " + event.dump() + "\n\n"))) return false;
    }
    if (script.hang_up) {
      shutdown(fd, SHUT_RDWR);
      return false;
    }
    const Json last{{"choices", Json::array()}, {"usage", script.usage}};
    return send_all(fd,
                    chunk("data: " + last.dump() + "\n\n") + chunk("data: [DONE]\n\n") + chunk(""));
  }

  Answer answer_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::vector<int> open_;
  std::vector<Json> bodies_;
  std::vector<std::thread> workers_;
  std::thread acceptor_;
};

}  // namespace quire::load
