// server/gate.h - which web pages may reach the server, before any key is looked at.
//
// A page that a user visits can send requests to the user's own machine. Three rules stop it:
//   - Host: without API keys, only names of this machine and those of --allowed-host are answered.
//     A page whose name was made to point here (DNS rebinding) sends its own name.
//   - Origin: a page from elsewhere is refused unless --cors-origins names it.
//   - Content-Type: what a browser sends is JSON and says so, so that it has to ask first
//     (preflight).
// Programs send neither Origin nor Sec-Fetch-Site; for them only the first rule counts.
//
//   Gate gate({.check_host = keys.empty(), .hosts = {"box.local"}});
//   if (auto error = gate.check(request)) return call->refuse(*error);   // 403, 415
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "net/http.h"
#include "server/api_error.h"

namespace quire {

struct GateOptions {
  bool check_host = true;
  std::vector<std::string> hosts;    // besides loopback names, without ports
  std::vector<std::string> origins;  // of pages that may call; "*": all
};

class Gate {
 public:
  explicit Gate(GateOptions options) : options_(std::move(options)) {}

  std::optional<ApiError> check(const HttpRequest& request) const;
  // What an answer to this origin carries; nothing for origins that --cors-origins does not name.
  std::vector<HttpHeader> cors_headers(const HttpRequest& request) const;

 private:
  bool named_origin(std::string_view origin) const;

  GateOptions options_;
};

// "[::1]:80" is "::1", "localhost:8080" is "localhost"; lower case.
std::string host_without_port(std::string_view host);

}  // namespace quire
