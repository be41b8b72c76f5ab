// net/testing.h - a plain blocking client, so that every byte on the wire is the test's own.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace quire {

class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~RawClient() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void send(std::string_view text) {
    EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void send_if_open(std::string_view text) { ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  void post(std::string_view path, std::string_view body) {
    send("POST " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
  }
  // Reads until `end` was seen, or the connection is over.
  std::string read_to(std::string_view end) {
    while (buffer_.find(end) == std::string::npos && more()) {
    }
    const std::size_t at = buffer_.find(end);
    const std::size_t size = at == std::string::npos ? buffer_.size() : at + end.size();
    std::string out = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return out;
  }
  std::string read_all() {
    while (more()) {
    }
    return std::exchange(buffer_, {});
  }

 private:
  bool more() {
    char part[4096];
    const ssize_t n = ::recv(fd_, part, sizeof part, 0);
    if (n > 0) buffer_.append(part, static_cast<std::size_t>(n));
    return n > 0;
  }
  int fd_;
  std::string buffer_;
};

}  // namespace quire
