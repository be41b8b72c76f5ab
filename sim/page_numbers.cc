#include "sim/page_numbers.h"

#include <bit>
#include <cstring>

#include "base/hash.h"
#include "base/random.h"
#include "format/families.h"

namespace quire {
namespace {

// Weight of a number in its slot's sum.
std::uint64_t weight_of(Side side, std::uint32_t d) {
  const std::uint32_t i = 2 * d + (side == Side::values ? 4096 : 0);
  return (i + 1) * 0x9e3779b1u | 1u;  // 32 bits
}

}  // namespace

// Of f16 and bf16, without decoding: equal numbers have equal bits.
void PageNumbers::add_raw(Side side, Rows rows, const std::byte* page) {
  const std::uint32_t tokens = rows.tokens;
  bits_.resize(std::size_t{tokens} * rows.dim);
  std::memcpy(bits_.data(), page, bits_.size() * sizeof(std::uint16_t));
  const bool by_slot = element_index(side, rows, 1, 0) != 1;  // numbers of a slot lie together
  for (std::uint32_t d = 0; d < rows.dim; ++d) {
    const std::uint64_t weight = weight_of(side, d);
    const std::uint16_t* const from = &bits_[element_index(side, rows, 0, d)];
    const std::size_t stride = by_slot ? rows.dim : 1;
    for (std::uint32_t t = 0; t < tokens; ++t) sums_[t] += from[t * stride] * weight;
  }
}

void PageNumbers::add(const Codec& codec, Side side, Rows rows, const std::byte* page) {
  if (codec.exact && codec.bits == 16) return add_raw(side, rows, page);
  numbers_.resize(std::size_t{rows.tokens} * rows.dim);
  codec.decode(codec, side, rows, page, numbers_.data());
  for (std::uint32_t t = 0; t < rows.tokens; ++t)
    for (std::uint32_t d = 0; d < rows.dim; ++d)
      sums_[t] += std::bit_cast<std::uint32_t>(numbers_[std::size_t{t} * rows.dim + d]) *
                  weight_of(side, d);
}

std::span<const std::uint64_t> PageNumbers::digests(const Geometry& geometry,
                                                    const LayerGroup& group,
                                                    const std::byte* page) {
  const Format& format = *group.format;
  const PageShape shape = geometry.page_shape(group);
  const std::size_t key_bytes = format.key_bytes(shape);
  const std::uint64_t name = mix64(hash64(page, key_bytes + format.value_bytes(shape)) ^
                                   hash64(format.name.data(), format.name.size()));
  Seen& seen = seen_[name % seen_.size()];
  if (seen.name == name && seen.digests.size() == shape.tokens) return seen.digests;
  sums_.assign(shape.tokens, 0);
  add(*format.keys, Side::keys, shape.rows(Side::keys), page);
  add(*format.values, Side::values, shape.rows(Side::values), page + key_bytes);
  for (std::uint64_t& sum : sums_) sum = mix64(sum);
  seen.name = name;
  seen.digests = sums_;
  return seen.digests;
}

std::span<const float> PageNumbers::keys(const Geometry& geometry, const LayerGroup& group,
                                         const std::byte* page) {
  const Rows rows = geometry.page_shape(group).rows(Side::keys);
  numbers_.resize(std::size_t{rows.tokens} * rows.dim);
  group.format->keys->decode(*group.format->keys, Side::keys, rows, page, numbers_.data());
  return numbers_;
}

}  // namespace quire
