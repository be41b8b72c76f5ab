// net/web_url.h - a URL of the web, taken apart, and what a redirect makes of it. For WebClient.
//
//   TRY(WebUrl url, WebUrl::parse("https://example.org/a/b?c=d"));
//   url.origin();                                   // "https://example.org"
//   TRY(WebUrl next, url.follow("/x"));             // https://example.org/x
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire {

struct WebUrl {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  std::uint16_t port = 80;
  std::string target = "/";  // path and query

  static Result<WebUrl> parse(std::string_view text);
  // Where a Location header leads from here. From https it does not lead to http.
  Result<WebUrl> follow(std::string_view location) const;

  std::string authority() const;  // as the Host header names it
  std::string origin() const { return (tls ? "https://" : "http://") + authority(); }
  std::string text() const { return origin() + target; }
};

// One part of a path: everything but letters, digits and -._~ as %XX; slashes stay.
std::string percent_encode_path(std::string_view path);

}  // namespace quire
