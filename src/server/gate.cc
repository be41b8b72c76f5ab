#include "server/gate.h"

#include <algorithm>

#include "net/http_server.h"

namespace quire {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// The page that this server sent itself. A proxy may have added TLS.
bool own_origin(std::string_view origin, std::string_view host) {
  return !host.empty() && (lower_case(origin) == "http://" + lower_case(host) ||
                           lower_case(origin) == "https://" + lower_case(host));
}

bool says_json(const HttpRequest& request) {
  const std::string type = lower_case(request.header("content-type"));
  return type == "application/json" || type.starts_with("application/json;");
}

// Headers a page may send: what clients in browsers are known to, and OpenAI's about itself.
bool sendable(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "authorization",  "content-type", "x-api-key",   "x-request-id",        "x-kv-policy",
      "accept",         "user-agent",   "openai-beta", "x-goog-api-key",      "anthropic-version",
      "anthropic-beta", "traceparent",  "tracestate",  "openai-organization", "openai-project"};
  return name.starts_with("x-stainless-") || std::ranges::find(kNames, name) != std::end(kNames);
}

std::string sendable_of(std::string_view requested) {
  std::string out = "authorization, content-type, x-api-key, x-request-id, x-kv-policy";
  for (std::size_t at = 0; at < requested.size();) {
    const std::size_t comma = std::min(requested.find(',', at), requested.size());
    std::string_view name = requested.substr(at, comma - at);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (const std::string lower = lower_case(name); sendable(lower)) out += ", " + lower;
    at = comma + 1;
  }
  return out;
}

ApiError refused(std::string message, std::string code, int status = 403) {
  return {.status = status,
          .message = std::move(message),
          .type = "permission_error",
          .code = std::move(code)};
}

}  // namespace

std::string host_without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    return lower_case(host.substr(1, end == host.npos ? host.npos : end - 1));
  }
  if (host.find(':') != host.rfind(':')) return lower_case(host);  // IPv6 without brackets
  std::string out = lower_case(host.substr(0, host.find(':')));
  if (out.ends_with('.')) out.pop_back();
  return out;
}

bool Gate::named_origin(std::string_view origin) const {
  return std::ranges::any_of(options_.origins,
                             [&](const std::string& o) { return o == "*" || o == origin; });
}

std::optional<ApiError> Gate::check(const HttpRequest& request) const {
  const std::string_view host = request.header("host"), origin = request.header("origin");
  if (options_.check_host && !host.empty()) {
    const std::string name = host_without_port(host);
    if (!is_loopback(name) && std::ranges::find(options_.hosts, name) == options_.hosts.end())
      return refused("the Host header names another machine; --allowed-host lets a name in",
                     "host_not_allowed");
  }
  if (request.method == "OPTIONS") return std::nullopt;  // asks only; cors_headers() answers
  if (!origin.empty() && !own_origin(origin, host) && !named_origin(origin))
    return refused("pages of this origin may not call; --cors-origins lets one in",
                   "origin_not_allowed");
  const bool browser = !origin.empty() || !request.header("sec-fetch-site").empty();
  const bool changes = request.method != "GET" && request.method != "HEAD";
  const std::string_view site = request.header("sec-fetch-site");
  if (changes && origin.empty() && (site == "cross-site" || site == "same-site"))
    return refused("pages of other sites may not call", "origin_not_allowed");
  if (browser &&
      (request.method == "POST" || request.method == "PATCH" || request.method == "PUT") &&
      !says_json(request))
    return refused("what a browser sends must be application/json", "unsupported_media_type", 415);
  return std::nullopt;
}

std::vector<HttpHeader> Gate::cors_headers(const HttpRequest& request) const {
  const std::string origin(request.header("origin"));
  if (origin.empty() || !named_origin(origin)) return {};
  std::vector<HttpHeader> out = {
      {"Access-Control-Allow-Origin", origin},
      {"Vary", "Origin"},
      {"Access-Control-Expose-Headers", "x-request-id, x-kv-cached-tokens, x-kv-prompt-tokens"}};
  if (request.method != "OPTIONS") return out;
  out.push_back({"Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE, OPTIONS"});
  out.push_back({"Access-Control-Allow-Headers",
                 sendable_of(request.header("access-control-request-headers"))});
  out.push_back({"Access-Control-Max-Age", "600"});
  if (request.header("access-control-request-private-network") == "true")
    out.push_back({"Access-Control-Allow-Private-Network", "true"});
  return out;
}

}  // namespace quire
