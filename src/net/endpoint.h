// net/endpoint.h - where an HTTP server listens, read from a URL and resolved once. For HttpClient.
//
//   TRY(Endpoint server, Endpoint::from_url("http://127.0.0.1:8080/v1"));
//   server.path("/chat/completions");   // "/v1/chat/completions"
//
// Plain http only: a load generator and a trace collector belong on the server's own network.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace quire {

struct Endpoint {
  // "http://host[:port][/base]"; the base may end in /v1 or not.
  static Result<Endpoint> from_url(std::string_view url);

  // The path of an API route below /v1, given without it.
  std::string path(std::string_view route) const { return base + "/v1" + std::string(route); }

  std::string host;  // as the Host header names it
  std::string base;  // what stands before /v1
  sockaddr_storage address{};
  socklen_t address_bytes = 0;
};

}  // namespace quire
