// From a URL to a RedisPlace.
#include <fmt/format.h>

#include <charconv>

#include "kv/tier/redis_store.h"

namespace quire {
namespace {

template <class Number>
bool whole_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

Error bad_url(std::string_view why) {
  return {Code::invalid,
          fmt::format("the address of a Redis store: {}; write redis://HOST:PORT,HOST:PORT, "
                      "with USER:PASSWORD@ before it and ?ttl=SECONDS&ca=FILE behind it if needed",
                      why)};
}

Result<RedisAddress> parse_redis_address(std::string_view text) {
  RedisAddress a;
  std::string_view host = text, port;
  if (text.starts_with('[')) {  // an IPv6 address
    const std::size_t end = text.find(']');
    if (end == text.npos) return bad_url("a bracket is missing");
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && port.front() != ':') return bad_url("a port begins with ':'");
    if (!port.empty()) port.remove_prefix(1);
  } else if (const std::size_t colon = text.rfind(':'); colon != text.npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.empty()) return bad_url("a host is missing");
  if (!port.empty() && (!whole_number(port, a.port) || a.port == 0))
    return bad_url(fmt::format("'{}' is no port", port));
  a.host = host;
  return a;
}

Status parse_redis_option(std::string_view option, RedisPlace& place) {
  const std::size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const std::string_view value = equals == option.npos ? "" : option.substr(equals + 1);
  std::uint32_t number = 0;
  if (name == "ca") {
    place.ca_file = value;
  } else if (name == "ttl" && whole_number(value, number) && number > 0) {
    place.ttl_s = number;
  } else if (name == "patience" && whole_number(value, number) && number > 0 && number <= 60000) {
    place.patience = Nanoseconds{number} * 1'000'000;
  } else {
    return bad_url(fmt::format("'{}' is no option", option));
  }
  return {};
}

}  // namespace

Result<RedisPlace> parse_redis_url(std::string_view url) {
  RedisPlace place;
  place.tls = url.starts_with("rediss://");
  if (!place.tls && !url.starts_with("redis://")) return bad_url("it begins with redis://");
  url.remove_prefix(url.find("//") + 2);
  std::string_view options;
  if (const std::size_t mark = url.find('?'); mark != url.npos) {
    options = url.substr(mark + 1);
    url = url.substr(0, mark);
  }
  if (const std::size_t at = url.rfind('@'); at != url.npos) {
    const std::string_view who = url.substr(0, at);
    const std::size_t colon = who.find(':');
    place.user = who.substr(0, colon);
    if (colon != who.npos) place.password = who.substr(colon + 1);
    url.remove_prefix(at + 1);
  }
  while (url.ends_with('/')) url.remove_suffix(1);
  while (true) {
    const std::size_t comma = url.find(',');
    TRY(RedisAddress address, parse_redis_address(url.substr(0, comma)));
    place.nodes.push_back(std::move(address));
    if (comma == url.npos) break;
    url.remove_prefix(comma + 1);
  }
  while (!options.empty()) {
    const std::size_t end = std::min(options.find('&'), options.size());
    TRY_STATUS(parse_redis_option(options.substr(0, end), place));
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return place;
}

}  // namespace quire
