// format/codes.h - the parts of a page: code planes and columns. Used by the codecs; the layout is
// described in codec.h.
//
//   Codes codes(page, Side::keys, rows, 4);
//   codes.set(slot, d, 11);                    // planes start as zeros
//   column<std::uint16_t>(page, offset, rows, group, slot) = f16_up(scale);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "format/codec.h"

namespace quire {

inline std::size_t round_up_64(std::size_t n) { return (n + 63) / 64 * 64; }

class Codes {
 public:
  // `page` may be null to ask for bytes() alone, and is written only by set().
  Codes(const std::byte* page, Side side, Rows rows, std::uint32_t bits)
      : page_(page), side_(side), rows_(rows), bits_(bits) {}

  std::size_t bytes() const {
    std::size_t sum = 0;
    each_plane([&](std::uint32_t, std::uint32_t width) { sum += plane_bytes(width); });
    return sum;
  }

  std::uint32_t get(std::uint32_t slot, std::uint32_t d) const {
    std::uint32_t code = 0;
    const std::byte* plane = page_;
    each_plane([&](std::uint32_t shift, std::uint32_t width) {
      const Place at = place(width, slot, d);
      const auto byte = std::to_integer<std::uint32_t>(plane[at.byte]);
      code |= (byte >> at.shift & ((1u << width) - 1)) << shift;
      plane += plane_bytes(width);
    });
    return code;
  }

  void set(std::uint32_t slot, std::uint32_t d, std::uint32_t code) {
    auto* plane = const_cast<std::byte*>(page_);
    each_plane([&](std::uint32_t shift, std::uint32_t width) {
      const Place at = place(width, slot, d);
      const std::uint32_t mask = (1u << width) - 1;
      plane[at.byte] = (plane[at.byte] & ~std::byte(mask << at.shift)) |
                       std::byte((code >> shift & mask) << at.shift);
      plane += plane_bytes(width);
    });
  }

  // Copies the codes of a slot from another page of the same shape. Most bytes hold codes of one
  // slot only: keys have words of four dimensions, values bytes four apart.
  void copy_slot(std::uint32_t slot, const Codes& from, std::uint32_t from_slot) {
    auto* plane = const_cast<std::byte*>(page_);
    const std::byte* source = from.page_;
    each_plane([&](std::uint32_t, std::uint32_t width) {
      const std::uint32_t per = 8 / width;
      if (side_ == Side::keys) {
        for (std::uint32_t d = 0; d < rows_.dim; d += 4 * per)
          std::memcpy(plane + place(width, slot, d).byte, source + place(width, from_slot, d).byte,
                      4);
      } else if (rows_.dim / 16 % per == 0) {
        for (std::uint32_t d = 0; d < rows_.dim; d += 16 * per) {
          std::byte* to = plane + place(width, slot, d).byte;
          const std::byte* at = source + place(width, from_slot, d).byte;
          for (std::uint32_t i = 0; i < 64; i += 4) to[i] = at[i];
        }
      } else {
        for (std::uint32_t d = 0; d < rows_.dim; ++d) {
          const Place to = place(width, slot, d), at = place(width, from_slot, d);
          const auto mask = std::byte((1u << width) - 1);
          plane[to.byte] = (plane[to.byte] & ~(mask << to.shift)) |
                           (source[at.byte] >> at.shift & mask) << to.shift;
        }
      }
      plane += plane_bytes(width);
      source += plane_bytes(width);
    });
  }

  // All codes, a byte each, in the order of the code vectors; index(slot, d) is the place of one.
  void unpack(std::uint8_t* out) const {
    const std::size_t vector = side_ == Side::keys ? rows_.tokens * 4u : 64u;
    const std::size_t vectors = std::size_t{rows_.tokens} * rows_.dim / vector;
    const std::byte* plane = page_;
    each_plane([&](std::uint32_t shift, std::uint32_t width) {
      const std::size_t per = 8 / width;
      const auto mask = static_cast<std::uint8_t>((1u << width) - 1);
      for (std::size_t v = 0; v < vectors; ++v) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(plane) + v / per * vector;
        const std::size_t drop = v % per * width;
        std::uint8_t* to = out + v * vector;
        for (std::size_t i = 0; i < vector; ++i)
          to[i] =
              static_cast<std::uint8_t>((shift ? to[i] : 0) | (from[i] >> drop & mask) << shift);
      }
      plane += plane_bytes(width);
    });
  }
  std::size_t index(std::uint32_t slot, std::uint32_t d) const {
    if (side_ == Side::keys) return (std::size_t{d / 4} * rows_.tokens + slot) * 4 + d % 4;
    return (std::size_t{slot / 4} * (rows_.dim / 16) + d / 16) * 64 + d % 16 * 4 + slot % 4;
  }

 private:
  struct Place {
    std::size_t byte;
    std::uint32_t shift;
  };

  template <class F>
  void each_plane(F f) const {  // f(shift within the code, width)
    for (std::uint32_t shift = 0, width = 8; width > 0; width /= 2)
      if (bits_ & width) {
        f(shift, width);
        shift += width;
      }
  }

  std::size_t plane_bytes(std::uint32_t width) const {
    const std::size_t vectors =
        side_ == Side::keys ? rows_.dim / 4 : rows_.tokens / 4 * (rows_.dim / 16);
    const std::size_t per = 8 / width, vector = side_ == Side::keys ? rows_.tokens * 4u : 64u;
    return round_up_64((vectors + per - 1) / per * vector);
  }

  Place place(std::uint32_t width, std::uint32_t slot, std::uint32_t d) const {
    const std::uint32_t per = 8 / width;
    if (side_ == Side::keys) {
      const std::size_t vector = d / 4;
      return {(vector / per * rows_.tokens + slot) * 4 + d % 4,
              static_cast<std::uint32_t>(vector % per) * width};
    }
    const std::size_t vector = std::size_t{slot / 4} * (rows_.dim / 16) + d / 16;
    return {vector / per * 64 + d % 16 * 4 + slot % 4,
            static_cast<std::uint32_t>(vector % per) * width};
  }

  const std::byte* page_;
  Side side_;
  Rows rows_;
  std::uint32_t bits_;
};

// Row `index` of a column of [count][P] numbers that starts at `offset`.
template <class T>
void put(std::byte* page, std::size_t offset, Rows rows, std::uint32_t index, std::uint32_t slot,
         T value) {
  std::memcpy(page + offset + (std::size_t{index} * rows.tokens + slot) * sizeof(T), &value,
              sizeof(T));
}

template <class T>
T take(const std::byte* page, std::size_t offset, Rows rows, std::uint32_t index,
       std::uint32_t slot) {
  T value;
  std::memcpy(&value, page + offset + (std::size_t{index} * rows.tokens + slot) * sizeof(T),
              sizeof(T));
  return value;
}

// Codes in a stream of bits, low bits first; one may straddle two bytes.
inline void put_bits(std::byte* stream, std::size_t bit, std::uint32_t count, std::uint32_t code) {
  for (std::uint32_t i = 0; i < count; ++i, ++bit) {
    const auto mask = std::byte(1u << bit % 8);
    stream[bit / 8] = code >> i & 1 ? stream[bit / 8] | mask : stream[bit / 8] & ~mask;
  }
}

inline std::uint16_t take_bits(const std::byte* stream, std::size_t bit, std::uint32_t count) {
  std::uint32_t code = 0;
  for (std::uint32_t i = 0; i < count; ++i, ++bit)
    code |= (std::to_integer<std::uint32_t>(stream[bit / 8]) >> bit % 8 & 1) << i;
  return static_cast<std::uint16_t>(code);
}

inline float clean(float x) { return std::isnan(x) ? 0.0f : std::clamp(x, -65504.0f, 65504.0f); }

// One row as the codec sees it.
inline void load_row(const float* row, std::uint32_t dim, Basis basis, float* out) {
  for (std::uint32_t d = 0; d < dim; ++d) out[d] = clean(row[d]);
  to_basis(basis, dim, out);
}

// The smallest f16 not below x >= 0: a scale rounded up never makes a code overflow.
inline std::uint16_t f16_up(float x) {
  std::uint16_t h = f32_to_f16(x);
  if (f16_to_f32(h) < x) ++h;
  return std::min<std::uint16_t>(h, 0x7bff);
}

// The next f16 below a finite one, but not below -65504.
inline std::uint16_t f16_below(std::uint16_t h) {
  if (h == 0) return 0x8001;
  return std::min<std::uint16_t>(h & 0x8000 ? h + 1 : h - 1, 0xfbff);
}

// To nearest, ties to even, within [0, top].
inline std::uint32_t round_code(float x, std::uint32_t top) {
  return static_cast<std::uint32_t>(std::clamp(std::nearbyint(x), 0.0f, static_cast<float>(top)));
}

inline float max_magnitude(const float* x, std::uint32_t n) {
  float m = 0;
  for (std::uint32_t i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

// Of n elements, a multiple of 32: 32 partial sums of neighbours, added as a tree 16 apart, 8, 4, 2, 1.
// A GPU's warp adds in this order.
inline float root_mean_square(const float* x, std::uint32_t n) {
  float part[32] = {};
  for (std::uint32_t i = 0; i < n; ++i)
    part[i / (n / 32)] = std::fma(x[i], x[i], part[i / (n / 32)]);
  for (std::uint32_t apart = 16; apart > 0; apart /= 2)
    for (std::uint32_t p = 0; p < apart; ++p) part[p] += part[p + apart];
  return std::sqrt(part[0] / static_cast<float>(n));
}

// Adds 16 partial sums as a tree: 8 apart, 4, 2, 1. Element i of a row belongs to sum i mod 16.
inline float add_tree(float (&sums)[16]) {
  for (std::uint32_t step = 8; step > 0; step /= 2)
    for (std::uint32_t i = 0; i < step; ++i) sums[i] += sums[i + step];
  return sums[0];
}

inline float sum_by_16(const float* x, std::uint32_t n) {
  float sums[16] = {};
  for (std::uint32_t i = 0; i < n; ++i) sums[i % 16] += x[i];
  return add_tree(sums);
}

inline float sum_squares(const float* x, std::uint32_t n) {
  float sums[16] = {};
  for (std::uint32_t i = 0; i < n; ++i) sums[i % 16] = std::fma(x[i], x[i], sums[i % 16]);
  return add_tree(sums);
}

}  // namespace quire
