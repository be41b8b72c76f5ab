// kernels/encoded_layout.h - what a prepared query row holds; shared by all versions of encoded.h.
//
//   codes                            f32 u, sum of z, m * u, each [blocks];
//                                    then the bytes of i, [terms][dim], high before low
//   KIVI's keys, floats, decoded     the row itself, f32 [dim]
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/encoded.h"

namespace quire {
namespace {

inline constexpr float kEncodedLeast = 0x1p-100f;  // a vector whose largest is smaller counts as 0

template <class Byte>  // std::byte or const std::byte
struct PreparedRow {
  template <class T>
  using As = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  As<float>*unit, *sum, *middle;
  As<std::int8_t>* bytes;
};

constexpr std::size_t encoded_blocks(const EncodedPart& p) {
  return (p.rows.dim + p.block - 1) / p.block;
}
constexpr std::size_t encoded_groups(const EncodedPart& p) { return p.rows.dim / p.group; }

constexpr bool row_is_float(const EncodedPart& p) {
  return p.kind != EncodedKind::codes || p.scales == EncodedScales::page_pair;
}

constexpr std::size_t prepared_bytes(const EncodedPart& p) {
  const std::size_t n =
      row_is_float(p) ? p.rows.dim * sizeof(float) : encoded_blocks(p) * 12 + p.terms * p.rows.dim;
  return (n + 63) / 64 * 64;
}

template <class Byte>
PreparedRow<Byte> prepared_row(const EncodedPart& p, Byte* prepared, std::size_t row) {
  using Row = PreparedRow<Byte>;
  const std::size_t n = encoded_blocks(p);
  Byte* at = prepared + row * p.prepared_bytes;
  auto* floats = reinterpret_cast<typename Row::template As<float>*>(at);
  return {floats, floats + n, floats + 2 * n,
          reinterpret_cast<typename Row::template As<std::int8_t>*>(at + 12 * n)};
}

}  // namespace
}  // namespace quire
