// The list of dialects. What none of them claims is the last one's.
#include <algorithm>
#include <array>

#include "server/dialect/dialect.h"

namespace quire {

extern const Dialect kResponses, kAnthropic, kGemini, kOllama, kLlamaServer, kOpenAi;

namespace {

constexpr std::array kDialects = {
    &kResponses, &kAnthropic, &kGemini, &kOllama, &kLlamaServer, &kOpenAi,
};

}  // namespace

std::span<const Dialect* const> dialects() { return kDialects; }

const Dialect* find_dialect(std::string_view name) {
  const auto found = std::ranges::find(kDialects, name, &Dialect::name);
  return found == kDialects.end() ? nullptr : *found;
}

const Dialect& dialect_of(const HttpRequest& request) {
  for (const Dialect* d : kDialects)
    if (d->claims && d->claims(request)) return *d;
  return *kDialects.back();
}

std::vector<std::string> request_ids(const std::string& id) {
  std::vector<std::string> out{id};
  for (const Dialect* dialect : kDialects)
    for (const std::string_view prefix : dialect->id_prefixes)
      if (id.starts_with(prefix)) {
        const std::string rest = id.substr(prefix.size());
        out.push_back("req_" + rest);
        out.push_back(rest);
      }
  return out;
}

}  // namespace quire
