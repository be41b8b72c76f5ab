#include "net/web_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "net/http.h"

namespace quire {
namespace {

constexpr std::size_t kUrlBytesMax = 16 << 10;

Error bad_web_url(std::string_view text, std::string_view why) {
  std::string shown(text.substr(0, 200));
  for (char& c : shown)
    if (c < 0x21 || c == 0x7f) c = '?';
  return {Code::invalid,
          fmt::format("'{}' is not a URL: {}; it looks like https://example.org/a", shown, why)};
}

bool printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

Result<WebUrl> WebUrl::parse(std::string_view text) {
  const auto bad = [&](std::string_view why) { return bad_web_url(text, why); };
  WebUrl url;
  if (text.size() > kUrlBytesMax) return bad("it is too long");
  if (!printable(text)) return bad("it has spaces or letters that must be encoded");
  const std::size_t scheme = text.find("://");
  if (scheme == text.npos) return bad("it does not begin with https://");
  url.tls = same_word(text.substr(0, scheme), "https");
  if (!url.tls && !same_word(text.substr(0, scheme), "http"))
    return bad("it does not begin with https:// or http://");
  std::string_view rest = text.substr(scheme + 3);
  rest = rest.substr(0, rest.find('#'));
  std::string_view authority = rest.substr(0, rest.find_first_of("/?"));
  const std::string_view target = rest.substr(authority.size());
  if (authority.find('@') != authority.npos) return bad("it has a user's name");
  url.port = url.tls ? 443 : 80;
  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == authority.npos) return bad("a bracket is missing");
    url.host = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
    if (!port.empty() && port.front() != ':') return bad("a port begins with ':'");
    if (!port.empty()) port.remove_prefix(1);
  } else {
    const std::size_t colon = authority.find(':');
    url.host = authority.substr(0, colon);
    if (colon != authority.npos) port = authority.substr(colon + 1);
  }
  if (url.host.empty()) return bad("it names no host");
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (error != std::errc{} || end != port.data() + port.size() || url.port == 0)
      return bad("its port is not a number");
  }
  url.target = target;
  if (!target.starts_with('/')) url.target.insert(0, "/");
  return url;
}

Result<WebUrl> WebUrl::follow(std::string_view location) const {
  WebUrl next = *this;
  if (location.find("://") != location.npos && location.find("://") < location.find('/')) {
    TRY(next, parse(location));
  } else if (location.starts_with("//")) {
    TRY(next, parse((tls ? "https:" : "http:") + std::string(location)));
  } else {
    std::string path(location);
    if (!location.starts_with('/')) {
      const std::string here = target.substr(0, target.find('?'));
      path = here.substr(0, here.rfind('/') + 1) + path;
    }
    TRY(next, parse(origin() + path));
  }
  if (tls && !next.tls)
    return Error{Code::unavailable,
                 fmt::format("{} leads to {}, which is not encrypted", origin(), next.origin())};
  return next;
}

std::string WebUrl::authority() const {
  std::string text = host.find(':') != host.npos ? "[" + host + "]" : host;
  if (port != (tls ? 443 : 80)) text += fmt::format(":{}", port);
  return text;
}

std::string percent_encode_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    if (plain)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace quire
