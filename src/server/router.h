// server/router.h - from method and path to a handler: one table, deny by default.
//
//   const RouteMatch m = find_route(routes, "GET", "/v1/models/a%2Fb");
//   m.route->handle(server, call);           // m.arguments = {"a/b"}
//
// Every path under /v1 also works under /v1beta and /v1alpha, which are Gemini's names for it, and
// without any of them. {name} takes one segment, {name*} takes the rest.
// Text after {name*} ("/models/{id*}:countTokens") must be the end of the path.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

class Server;
struct Call;
struct Dialect;

enum class Access : std::uint8_t { open, user, admin };

struct Route {
  std::string_view method, pattern;
  Access access;
  void (*handle)(Server& server, std::shared_ptr<Call> call);
  std::string_view operation = {};   // "chat", as OpenTelemetry calls it; empty: generates nothing
  const Dialect* dialect = nullptr;  // none: one of the server's own
};

struct RouteMatch {
  const Route* route = nullptr;
  std::vector<std::string> arguments;  // decoded
  std::string allow;                   // methods of this path, where only the method was wrong
};

RouteMatch find_route(std::span<const Route> routes, std::string_view method,
                      std::string_view path);

}  // namespace quire
