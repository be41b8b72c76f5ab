// format/codec.h - how P rows of keys, or of values, become the bytes of one lane page, and back.
//
// A codec is an entry of the table in codec.cc. A format (format.h) is a pair of codecs, one for
// keys and one for values. These functions define the bytes. They are plain code without
// allocation, and every rounding is one that a vector instruction has, so that fast encoders can
// give the same bytes.
//
//   const Codec& c = *find_codec("hadamard-int4").value();
//   const Rows rows{.tokens = 32, .dim = 64};
//   c.encode(c, Side::keys, rows, floats, page);   // floats: [32][64], page: codec_bytes() long
//   c.decode(c, Side::keys, rows, page, floats);   // in the codec's basis: score them with
//                                                  // to_basis(c.basis(side), dim, query)
//
// Every lossy codec encodes NaN as 0, infinities and numbers beyond f16 as +-65504, and a scale
// that f16 cannot hold as 65504. So a decoded page is always finite.
//
// Layout. A page is its code planes, then its columns, each starting at a multiple of 64 bytes.
// Codes are unsigned; a code of 3 bits is a plane of 2 (the low bits) and one of 1, of 5 bits 4 and
// 1. One 64-byte vector of a plane of b bits holds 8 / b vectors of bytes, number j in the bits
// [j * b, j * b + b) of each byte:
//   keys    the bytes are [P][4], four neighbouring dimensions side by side, and vectors follow
//           along the dimensions: what VPDPBUSD multiplies with four broadcast query bytes
//   values  the bytes are [16][4], 16 dimensions by four neighbouring slots, and vectors follow
//           along the dimensions, then the slots: VPDPBUSD with the weights of four slots
// A column is [count][P] numbers (the scales of 16 slots are one load), or [count] for the page.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "format/basis.h"

namespace quire {

enum class RowType : std::uint8_t { f32, f16, bf16 };
enum class Side : std::uint8_t { keys, values };

inline constexpr std::uint32_t kCodecDimMax = 1024;

struct Rows {
  std::uint32_t tokens;  // P
  std::uint32_t dim;
};

struct Column {
  std::uint32_t count = 0, bytes = 0;
  bool per_slot = true;  // [count][P]; else [count] for all slots of the page
};

struct CodecLayout {
  std::uint32_t code_bits = 0;  // of one code per element; 0: no planes
  std::array<Column, 3> columns{};
};

struct Codec {
  std::string_view name;
  RowType rows = RowType::f16;  // of the open tail
  bool exact = false;           // stores the row type unchanged
  bool research = false;        // for study; not expected to be fast or good
  Basis key_basis = Basis::plain, value_basis = Basis::plain;
  // Symmetric codes: the scale is made from the group's root mean square, not its largest magnitude.
  bool scale_is_mean = false;
  std::uint32_t bits = 0;           // of a code
  std::uint32_t group = 0;          // dimensions that share a scale; 0: all of them
  std::uint32_t dim_multiple = 32;  // what it can hold
  bool dim_power_of_two = false;
  // Needs a calibration of its lane (calibration.h) and stores keys before RoPE. encode and decode
  // below then use a calibration for normally distributed numbers.
  bool calibrated = false;
  std::uint32_t channels =
      1;  // coupled quantization: neighbours that share a code of bits * channels
  std::uint32_t layers = 1;  // neighbouring layers whose rows are concatenated to one row

  CodecLayout (*layout)(const Codec&, Side, Rows);
  void (*encode)(const Codec&, Side, Rows, const float* rows, std::byte* page);
  void (*decode)(const Codec&, Side, Rows, const std::byte* page, float* rows);

  Basis basis(Side side) const { return side == Side::keys ? key_basis : value_basis; }
};

struct CodecAlias {
  std::string_view theirs, ours;
};

std::span<const Codec* const> codecs();
std::span<const CodecAlias> codec_aliases();  // what other servers and libraries call them
Result<const Codec*> find_codec(std::string_view name);  // or what other servers call it

Status check_rows(const Codec& codec, Rows rows);  // can it hold pages of this shape?

std::size_t codec_bytes(const Codec& codec, Side side, Rows rows);
double effective_bits(const Codec& codec, Side side, Rows rows);  // of an element; padding included

// Class A: a slot's bytes depend on its own row alone, so slots may be moved. Class B: they depend
// on all rows of the page.
bool slots_stand_alone(const Codec& codec, Side side, Rows rows);
void copy_slot(const Codec& codec, Side side, Rows rows, const std::byte* from,
               std::uint32_t from_slot, std::byte* to, std::uint32_t to_slot);

// Where the columns start; the planes start at 0.
std::size_t column_offset(const Codec& codec, Side side, Rows rows, std::size_t column);

}  // namespace quire
