#include "sim/page_numbers.h"

#include <bit>

#include "base/hash.h"
#include "base/random.h"

namespace quire {
namespace {

constexpr std::size_t kSeenMax = 8192;

// Numbers of one slot, in their order.
std::uint64_t digest_of(const float* numbers, std::uint32_t count, std::uint32_t first) {
  std::uint64_t sum = 0;
  for (std::uint32_t d = 0; d < count; ++d)
    sum += std::uint64_t{std::bit_cast<std::uint32_t>(numbers[d])} *
           (2 * std::uint64_t{first + d + 1} * 0x9e3779b1u + 1);
  return sum;
}

}  // namespace

const DecodedPage& PageNumbers::read(const Geometry& geometry, const LayerGroup& group,
                                     const std::byte* page) {
  const Format& format = *group.format;
  const PageShape shape = geometry.page_shape(group);
  const std::size_t key_bytes = format.key_bytes(shape);
  const std::uint64_t name = mix64(hash64(page, key_bytes + format.value_bytes(shape)) ^
                                   hash64(format.name.data(), format.name.size()));
  if (seen_.size() > kSeenMax) seen_.clear();
  const auto [at, fresh] = seen_.try_emplace(name);
  DecodedPage& made = at->second;
  if (!fresh) return made;
  const std::uint32_t tokens = shape.tokens;
  made.keys.resize(std::size_t{tokens} * shape.key_dim);
  values_.resize(std::size_t{tokens} * shape.value_dim);
  format.keys->decode(*format.keys, Side::keys, shape.rows(Side::keys), page, made.keys.data());
  format.values->decode(*format.values, Side::values, shape.rows(Side::values), page + key_bytes,
                        values_.data());
  for (std::uint32_t t = 0; t < tokens; ++t)
    made.digests.push_back(
        mix64(digest_of(made.keys.data() + std::size_t{t} * shape.key_dim, shape.key_dim, 0) +
              digest_of(values_.data() + std::size_t{t} * shape.value_dim, shape.value_dim, 4096)));
  return made;
}

}  // namespace quire
