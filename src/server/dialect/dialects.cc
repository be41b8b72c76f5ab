// The list of dialects. What none of them claims is the last one's.
#include <algorithm>
#include <array>

#include "server/dialect/dialect.h"

namespace quire {

extern const Dialect kOpenAi;

namespace {

constexpr std::array kDialects = {
    &kOpenAi,
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

}  // namespace quire
