#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "format/format.h"

namespace quire {
namespace {

// Every pair of codecs with the same row type and number of layers. Made once, because formats are
// compared and kept by address.
class Pairs {
 public:
  Pairs() {
    const auto all = codecs();
    pairs_.reserve(all.size() * all.size());
    names_.reserve(all.size() * all.size());
    for (const Codec* k : all)
      for (const Codec* v : all) {
        if (k->rows != v->rows || k->layers != v->layers) continue;
        names_.push_back(k == v ? std::string(k->name) : fmt::format("{}/{}", k->name, v->name));
        pairs_.push_back({names_.back(), k->rows, k->exact && v->exact, k, v});
      }
    for (const Format& f : pairs_)
      if (f.keys == f.values) named_.push_back(&f);
  }

  std::span<const Format* const> named() const { return named_; }

  const Format* find(const Codec* keys, const Codec* values) const {
    for (const Format& f : pairs_)
      if (f.keys == keys && f.values == values) return &f;
    return nullptr;
  }

 private:
  std::vector<std::string> names_;  // never grows again: the views into it stay
  std::vector<Format> pairs_;
  std::vector<const Format*> named_;
};

const Pairs& pairs() {
  static const Pairs all;
  return all;
}

}  // namespace

double Format::effective_bits(const PageShape& s) const {
  return 8.0 * static_cast<double>(key_bytes(s) + value_bytes(s)) /
         (std::size_t{s.tokens} * (s.key_dim + s.value_dim));
}

Status Format::check(const PageShape& s) const {
  TRY_STATUS(check_rows(*keys, s.rows(Side::keys)));
  return s.value_dim == 0 ? Status() : check_rows(*values, s.rows(Side::values));
}

void Format::encode(const PageShape& s, const float* key_rows, const float* value_rows,
                    std::byte* page) const {
  std::memset(page, 0, key_bytes(s) + value_bytes(s));
  keys->encode(*keys, Side::keys, s.rows(Side::keys), key_rows, page);
  if (s.value_dim != 0)
    values->encode(*values, Side::values, s.rows(Side::values), value_rows, page + key_bytes(s));
}

void Format::decode(const PageShape& s, const std::byte* page, float* key_rows,
                    float* value_rows) const {
  keys->decode(*keys, Side::keys, s.rows(Side::keys), page, key_rows);
  if (s.value_dim != 0)
    values->decode(*values, Side::values, s.rows(Side::values), page + key_bytes(s), value_rows);
}

bool Format::slots_stand_alone(const PageShape& s) const {
  return quire::slots_stand_alone(*keys, Side::keys, s.rows(Side::keys)) &&
         quire::slots_stand_alone(*values, Side::values, s.rows(Side::values));
}

void Format::copy_slot(const PageShape& s, const std::byte* from, std::uint32_t from_slot,
                       std::byte* to, std::uint32_t to_slot) const {
  quire::copy_slot(*keys, Side::keys, s.rows(Side::keys), from, from_slot, to, to_slot);
  if (s.value_dim == 0) return;
  const std::size_t values_at = key_bytes(s);
  quire::copy_slot(*values, Side::values, s.rows(Side::values), from + values_at, from_slot,
                   to + values_at, to_slot);
}

std::span<const Format* const> formats() { return pairs().named(); }

Result<const Format*> find_format(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return find_format(name, name);
  return find_format(name.substr(0, slash), name.substr(slash + 1));
}

Result<const Format*> find_format(std::string_view keys, std::string_view values) {
  TRY(const Codec* k, find_codec(keys));
  TRY(const Codec* v, find_codec(values));
  if (const Format* f = pairs().find(k, v)) return f;
  return Error{
      Code::unsupported,
      fmt::format("keys in {} and values in {}: only codecs with rows of f16 can be combined, "
                  "not f32, bf16 or minicache",
                  k->name, v->name)};
}

}  // namespace quire
