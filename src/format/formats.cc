#include <string>

#include "format/format.h"

namespace quire {
namespace {

template <std::size_t kElementBytes>
std::size_t plain_keys(const PageShape& s) {
  return kElementBytes * s.tokens * s.key_dim;
}

template <std::size_t kElementBytes>
std::size_t plain_values(const PageShape& s) {
  return kElementBytes * s.tokens * s.value_dim;
}

constexpr Format kF32 = {"f32", RowType::f32, true, plain_keys<4>, plain_values<4>};
constexpr Format kF16 = {"f16", RowType::f16, true, plain_keys<2>, plain_values<2>};
constexpr Format kBf16 = {"bf16", RowType::bf16, true, plain_keys<2>, plain_values<2>};

constexpr const Format* kFormats[] = {&kF32, &kF16, &kBf16};

}  // namespace

std::span<const Format* const> formats() { return kFormats; }

Result<const Format*> find_format(std::string_view name) {
  std::string known;
  for (const Format* f : kFormats) {
    if (f->name == name) return f;
    known += ' ' + std::string(f->name);
  }
  return Error{Code::not_found, "no KV format '" + std::string(name) + "'; there are:" + known};
}

}  // namespace quire
