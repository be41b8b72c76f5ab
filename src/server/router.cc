#include "server/router.h"

#include "net/http.h"

namespace quire {
namespace {

std::string_view without_version(std::string_view path) {
  for (const std::string_view version : {"/v1", "/v1beta", "/v1alpha"})
    if (path.starts_with(version) && path.substr(version.size()).starts_with('/'))
      return path.substr(version.size());
  return path;
}

bool matches(std::string_view pattern, std::string_view path, std::vector<std::string>& arguments) {
  arguments.clear();
  while (!pattern.empty()) {
    const std::size_t brace = pattern.find('{');
    const std::string_view fixed = pattern.substr(0, brace);
    if (!path.starts_with(fixed)) return false;
    path.remove_prefix(fixed.size());
    if (brace == pattern.npos) return path.empty();
    const std::size_t end = pattern.find('}', brace);
    const bool rest = pattern[end - 1] == '*';
    pattern.remove_prefix(end + 1);
    std::string_view value = rest ? path : path.substr(0, path.find('/'));
    if (!pattern.empty() && pattern.front() != '/') {
      const std::size_t at = value.rfind(pattern.substr(0, pattern.find_first_of("/{")));
      value = value.substr(0, at == value.npos ? 0 : at);
    }
    if (value.empty()) return false;
    arguments.push_back(percent_decode(value));
    path.remove_prefix(value.size());
  }
  return path.empty();
}

}  // namespace

RouteMatch find_route(std::span<const Route> routes, std::string_view method,
                      std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  RouteMatch match;
  for (const Route& r : routes) {
    std::vector<std::string> arguments;
    if (!matches(without_version(r.pattern), without_version(path), arguments)) continue;
    if (r.method == wanted) {
      match.route = &r;
      match.arguments = std::move(arguments);
      return match;
    }
    if (match.allow.find(r.method) == std::string::npos)
      match.allow += (match.allow.empty() ? "" : ", ") + std::string(r.method);
  }
  return match;
}

}  // namespace quire
