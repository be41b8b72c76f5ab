#include "net/endpoint.h"

#include <fmt/format.h>
#include <netdb.h>

#include <cstring>

namespace quire {

Result<Endpoint> Endpoint::from_url(std::string_view url) {
  const auto bad = [&](std::string_view why) {
    return Error{Code::invalid, fmt::format("'{}' is not a URL of a server: {}; it looks like "
                                            "http://127.0.0.1:8080",
                                            url, why)};
  };
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://")) return bad("TLS is not spoken here");
  if (!url.starts_with(kScheme)) return bad("it does not begin with http://");
  const std::string_view rest = url.substr(kScheme.size());
  const std::string_view authority = rest.substr(0, rest.find('/'));
  std::string_view base = rest.substr(authority.size());
  while (base.ends_with('/')) base.remove_suffix(1);
  if (base.ends_with("/v1")) base.remove_suffix(3);

  std::string_view name = authority, port = "80";
  // An IPv6 address has colons of its own and stands in brackets.
  if (const std::size_t colon = authority.rfind(':');
      colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos) {
    name = authority.substr(0, colon);
    port = authority.substr(colon + 1);
  }
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  if (name.empty()) return bad("it names no host");
  if (port.empty() || port.find_first_not_of("0123456789") != std::string_view::npos)
    return bad("its port is not a number");

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string host(name), service(port);
  if (const int status = getaddrinfo(host.c_str(), service.c_str(), &hints, &found); status != 0)
    return Error{Code::unavailable, fmt::format("{}: {}", host, gai_strerror(status))};
  Endpoint endpoint;
  endpoint.host = authority;
  endpoint.base = base;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  endpoint.address_bytes = found->ai_addrlen;
  freeaddrinfo(found);
  return endpoint;
}

}  // namespace quire
