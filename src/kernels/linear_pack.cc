// Packing: an encoded row is taken apart into codes, scales and minima, then laid out as
// linear_layout.h says.
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "kernels/linear.h"
#include "kernels/linear_layout.h"

namespace quire {
namespace {

// One row taken apart: value[k] = scale[k / group] * (code[k] - offset) [+ minimum[k / group]].
// Scales of half types are the source's f16 bits; others are the f32 products that dequantizing
// makes.
struct RowParts {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> half_scales, half_minima;
  std::vector<float> scales, minima;
};

std::uint8_t u8(const std::byte* p, std::size_t i) { return static_cast<std::uint8_t>(p[i]); }

std::uint16_t u16(const std::byte* p) {
  std::uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

std::uint32_t u32(const std::byte* p) {
  std::uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Sixteen bytes of nibbles: the low ones are elements 0..15, the high ones 16..31.
void take_nibbles(const std::byte* q, std::uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = u8(q, j) & 15;
    codes[j + 16] = u8(q, j) >> 4;
  }
}

void add_fifth_bits(std::uint32_t bits, std::uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] |= (bits >> j & 1) << 4;
}

void take_block32(DType type, const std::byte* block, std::size_t b, RowParts& row) {
  std::uint8_t* codes = &row.codes[b * 32];
  row.half_scales[b] = u16(block);
  const std::byte* rest = block + 2;
  if (linear_layout(type).minimum) {
    row.half_minima[b] = u16(rest);
    rest += 2;
  }
  switch (type) {
    case DType::q4_0:
    case DType::q4_1:
    case DType::iq4_nl:
      take_nibbles(rest, codes);
      break;
    case DType::q5_0:
    case DType::q5_1:
      take_nibbles(rest + 4, codes);
      add_fifth_bits(u32(rest), codes);
      break;
    case DType::q8_0:
      for (int j = 0; j < 32; ++j) codes[j] = u8(rest, j) ^ 0x80;  // adds 128
      break;
    default:
      CHECK(!"not a type with blocks of 32");
  }
}

// The eight 6-bit (scale, minimum) pairs of Q4_K and Q5_K.
void take_scales_k4(float d, float dmin, const std::byte* s, float* scales, float* minima) {
  for (int j = 0; j < 8; ++j) {
    const int scale = j < 4 ? u8(s, j) & 63 : (u8(s, j + 4) & 15) | (u8(s, j - 4) >> 6) << 4;
    const int minimum = j < 4 ? u8(s, j + 4) & 63 : u8(s, j + 4) >> 4 | (u8(s, j) >> 6) << 4;
    scales[j] = d * static_cast<float>(scale);
    minima[j] = -(dmin * static_cast<float>(minimum));
  }
}

void take_q2_k(const std::byte* block, std::uint8_t* codes, float* scales, float* minima) {
  const std::byte *packed = block, *q = block + 16;
  const float d = f16_to_f32(u16(block + 80)), dmin = f16_to_f32(u16(block + 82));
  for (int g = 0; g < 16; ++g) {
    scales[g] = d * static_cast<float>(u8(packed, g) & 15);
    minima[g] = -(dmin * static_cast<float>(u8(packed, g) >> 4));
  }
  for (int k = 0; k < 256; ++k) codes[k] = u8(q, k / 128 * 32 + k % 32) >> (k / 32 % 4 * 2) & 3;
}

void take_q3_k(const std::byte* block, std::uint8_t* codes, float* scales) {
  const std::byte *high = block, *q = block + 32, *packed = block + 96;
  const float d = f16_to_f32(u16(block + 108));
  for (int g = 0; g < 16; ++g) {
    const int low4 = g < 8 ? u8(packed, g) & 15 : u8(packed, g - 8) >> 4;
    const int high2 = u8(packed, 8 + g % 4) >> (g / 4 * 2) & 3;
    scales[g] = d * static_cast<float>((low4 | high2 << 4) - 32);
  }
  for (int k = 0; k < 256; ++k) {
    const int low2 = u8(q, k / 128 * 32 + k % 32) >> (k / 32 % 4 * 2) & 3;
    codes[k] = static_cast<std::uint8_t>(low2 | (u8(high, k % 32) >> (k / 32) & 1) << 2);
  }
}

void take_q4_k(const std::byte* block, std::uint8_t* codes, float* scales, float* minima) {
  take_scales_k4(f16_to_f32(u16(block)), f16_to_f32(u16(block + 2)), block + 4, scales, minima);
  for (int k = 0; k < 256; ++k)
    codes[k] = u8(block, 16 + k / 64 * 32 + k % 32) >> (k / 32 % 2 * 4) & 15;
}

void take_q5_k(const std::byte* block, std::uint8_t* codes, float* scales, float* minima) {
  take_scales_k4(f16_to_f32(u16(block)), f16_to_f32(u16(block + 2)), block + 4, scales, minima);
  for (int k = 0; k < 256; ++k) {
    const int low4 = u8(block, 48 + k / 64 * 32 + k % 32) >> (k / 32 % 2 * 4) & 15;
    codes[k] = static_cast<std::uint8_t>(low4 | (u8(block, 16 + k % 32) >> (k / 32) & 1) << 4);
  }
}

void take_q6_k(const std::byte* block, std::uint8_t* codes, float* scales) {
  const std::byte *low = block, *high = block + 128, *packed = block + 192;
  const float d = f16_to_f32(u16(block + 208));
  for (int g = 0; g < 16; ++g)
    scales[g] = d * static_cast<float>(static_cast<std::int8_t>(u8(packed, g)));
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, quarter = k / 32 % 4;
    const int low4 = u8(low, half * 64 + quarter % 2 * 32 + k % 32) >> (quarter / 2 * 4) & 15;
    const int high2 = u8(high, half * 32 + k % 32) >> (quarter * 2) & 3;
    codes[k] = static_cast<std::uint8_t>(low4 | high2 << 4);
  }
}

void take_block256(DType type, const std::byte* block, std::size_t b, RowParts& row) {
  const std::size_t groups = 256 / linear_layout(type).group;
  std::uint8_t* codes = &row.codes[b * 256];
  float* scales = &row.scales[b * groups];
  float* minima = &row.minima[b * groups];
  switch (type) {
    case DType::q2_k:
      return take_q2_k(block, codes, scales, minima);
    case DType::q3_k:
      return take_q3_k(block, codes, scales);
    case DType::q4_k:
      return take_q4_k(block, codes, scales, minima);
    case DType::q5_k:
      return take_q5_k(block, codes, scales, minima);
    case DType::q6_k:
      return take_q6_k(block, codes, scales);
    default:
      CHECK(!"not a type with blocks of 256");
  }
}

void take_row(DType type, std::uint32_t inputs, const std::byte* source, RowParts& row) {
  const bool small = linear_layout(type).half_scales;
  const std::uint32_t elements = small ? 32 : 256;
  const std::size_t block_bytes = row_bytes(type, elements);
  for (std::size_t b = 0; b < inputs / elements; ++b) {
    if (small)
      take_block32(type, source + b * block_bytes, b, row);
    else
      take_block256(type, source + b * block_bytes, b, row);
  }
}

void put_code(const LinearLayout& layout, std::uint32_t lane, std::uint32_t k, std::uint8_t code,
              std::byte* record) {
  const std::size_t vector = k / 4, at = lane * 4 + k % 4;
  if (layout.code_bits == 8)
    record[vector * 64 + at] = std::byte{code};
  else
    record[vector / 2 * 64 + at] |= std::byte{code} << (vector % 2 * 4);
}

template <class T>
void put_number(T value, std::uint32_t lane, std::size_t group, std::byte* into) {
  std::memcpy(into + (group * kLinearLanes + lane) * sizeof(T), &value, sizeof(T));
}

void pack_quantized_row(DType type, std::uint32_t inputs, std::uint32_t lane, const RowParts& row,
                        std::byte* panel) {
  const LinearLayout layout = linear_layout(type);
  const RecordParts parts = record_parts(type);
  const std::size_t groups = 32 / layout.group;
  for (std::size_t b = 0; b < inputs / 32; ++b) {
    std::byte* record = panel + b * parts.bytes;
    for (std::uint32_t k = 0; k < 32; ++k) put_code(layout, lane, k, row.codes[b * 32 + k], record);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t at = b * groups + g;
      if (layout.half_scales) {
        put_number(row.half_scales[at], lane, g, record + parts.scales);
        if (layout.minimum) put_number(row.half_minima[at], lane, g, record + parts.minima);
      } else {
        put_number(row.scales[at], lane, g, record + parts.scales);
        if (layout.minimum) put_number(row.minima[at], lane, g, record + parts.minima);
      }
    }
  }
}

void pack_plain_row(std::size_t element, std::uint32_t inputs, std::uint32_t lane,
                    const std::byte* source, std::byte* panel) {
  for (std::size_t k = 0; k < inputs; ++k)
    std::memcpy(panel + (k * kLinearLanes + lane) * element, source + k * element, element);
}

}  // namespace

PackedMatrix pack_matrix(DType type, std::uint32_t outputs, std::uint32_t inputs,
                         const std::function<const std::byte*(std::uint32_t)>& row,
                         std::span<std::byte> into) {
  CHECK(into.size() >= packed_bytes(type, outputs, inputs));
  CHECK(reinterpret_cast<std::uintptr_t>(into.data()) % 64 == 0);
  const LinearLayout layout = linear_layout(type);
  const bool quantized = layout.code_bits != 0;
  const std::size_t stride = panel_stride(type, inputs);
  std::memset(into.data(), 0, packed_bytes(type, outputs, inputs));  // padding outputs are zero
  RowParts parts;
  if (quantized) {
    CHECK(inputs % (layout.half_scales ? 32 : 256) == 0);
    const std::size_t groups = inputs / layout.group;
    parts.codes.resize(inputs);
    if (layout.half_scales) {
      parts.half_scales.resize(groups);
      parts.half_minima.resize(groups);
    } else {
      parts.scales.resize(groups);
      parts.minima.resize(groups);
    }
  }
  for (std::uint32_t o = 0; o < outputs; ++o) {
    std::byte* panel = into.data() + o / kLinearLanes * stride;
    if (!quantized) {
      pack_plain_row(type == DType::f32 ? 4 : 2, inputs, o % kLinearLanes, row(o), panel);
      continue;
    }
    take_row(type, inputs, row(o), parts);
    pack_quantized_row(type, inputs, o % kLinearLanes, parts, panel);
  }
  return {.type = type, .outputs = outputs, .inputs = inputs, .data = into.data()};
}

}  // namespace quire
