#include "lab/board/way.h"

#include <algorithm>
#include <string>

#include "kv/select/policy.h"

namespace quire {

Result<Way> parse_way(std::string_view text) {
  Way way;
  if (text == "full") return way;
  if (text == "none") {
    way.no_context = true;
    return way;
  }
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('+', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    at = end + 1;
    const auto selector = std::ranges::find(select_methods(), part, &SelectMethod::name);
    if (selector != select_methods().end()) {
      way.selects = selector->name;
    } else if (part == "cacheblend" || part == "key-rotation") {
      way.blends = true;
    } else if (auto method = find_retain_method(part); method.ok()) {
      way.method = method.value();
    } else if (auto merger = find_merger(part); merger.ok()) {
      way.merger = merger.value();
    } else if (auto format = find_format(part); format.ok()) {
      way.format = format.value();
    } else {
      return Error{Code::not_found,
                   "'" + std::string(part) + "' in '" + std::string(text) +
                       "' is no retention method, no merger and no format; `quire kv methods` and "
                       "`quire kv formats` list them"};
    }
  }
  if (way.merger && !way.method)
    return Error{Code::invalid, "'" + std::string(text) + "': nothing leaves that could be merged"};
  if (way.method && (way.blends || !way.selects.empty()))
    return Error{Code::invalid, "'" + std::string(text) + "': one of the two says what is read"};
  return way;
}

}  // namespace quire
