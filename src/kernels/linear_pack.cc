// Packing: an encoded row is taken apart into codes, scales and minima, then laid out as
// linear_layout.h says.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/linear.h"
#include "kernels/linear_layout.h"
#include "tensor/dequantize.h"

namespace quire {
namespace {

// One row taken apart: value[k] = scale[k / group] * (code[k] - offset) [+ minimum[k / group]].
// Numbers are f16 or bf16 bits, those of types with heads per 256 inputs; the int8 factors are
// theirs alone. Types with a grid have f32 `heads` instead.
struct RowParts {
  std::vector<std::uint8_t> codes, zeros;
  std::vector<std::uint16_t> scales, minima;
  std::vector<float> heads;
  std::vector<std::int8_t> scale_factors, minimum_factors;
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
  if (type == DType::mxfp4) {
    row.scales[b] = mxfp4_scale(u8(block, 0));
    take_nibbles(block + 1, codes);
    return;
  }
  row.scales[b] = u16(block);
  const std::byte* rest = block + 2;
  if (linear_layout(type).minimum) {
    row.minima[b] = u16(rest);
    rest += 2;
  }
  switch (type) {
    case DType::q4_0:
    case DType::q4_1:
    case DType::iq4_nl:
      take_nibbles(rest, codes);
      break;
    case DType::u4:
    case DType::u4_bf16:
      row.zeros[b] = u8(rest, 0);
      take_nibbles(rest + 1, codes);
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

// One block of 256 inputs: where its parts go.
struct SuperBlock {
  std::uint8_t* codes;
  std::int8_t *scales, *minima;  // by group
};

// The eight 6-bit (scale, minimum) pairs of Q4_K and Q5_K.
void take_factors_k4(const std::byte* s, const SuperBlock& to) {
  for (int j = 0; j < 8; ++j) {
    to.scales[j] = static_cast<std::int8_t>(j < 4 ? u8(s, j) & 63
                                                  : (u8(s, j + 4) & 15) | (u8(s, j - 4) >> 6) << 4);
    to.minima[j] = static_cast<std::int8_t>(j < 4 ? u8(s, j + 4) & 63
                                                  : u8(s, j + 4) >> 4 | (u8(s, j) >> 6) << 4);
  }
}

void take_q2_k(const std::byte* block, const SuperBlock& to) {
  for (int g = 0; g < 16; ++g) {
    to.scales[g] = static_cast<std::int8_t>(u8(block, g) & 15);
    to.minima[g] = static_cast<std::int8_t>(u8(block, g) >> 4);
  }
  for (int k = 0; k < 256; ++k)
    to.codes[k] = u8(block, 16 + k / 128 * 32 + k % 32) >> (k / 32 % 4 * 2) & 3;
}

void take_q3_k(const std::byte* block, const SuperBlock& to) {
  const std::byte *high = block, *q = block + 32, *packed = block + 96;
  for (int g = 0; g < 16; ++g) {
    const int low4 = g < 8 ? u8(packed, g) & 15 : u8(packed, g - 8) >> 4;
    const int high2 = u8(packed, 8 + g % 4) >> (g / 4 * 2) & 3;
    to.scales[g] = static_cast<std::int8_t>((low4 | high2 << 4) - 32);
  }
  for (int k = 0; k < 256; ++k) {
    const int low2 = u8(q, k / 128 * 32 + k % 32) >> (k / 32 % 4 * 2) & 3;
    to.codes[k] = static_cast<std::uint8_t>(low2 | (u8(high, k % 32) >> (k / 32) & 1) << 2);
  }
}

void take_q4_k(const std::byte* block, const SuperBlock& to) {
  take_factors_k4(block + 4, to);
  for (int k = 0; k < 256; ++k)
    to.codes[k] = u8(block, 16 + k / 64 * 32 + k % 32) >> (k / 32 % 2 * 4) & 15;
}

void take_q5_k(const std::byte* block, const SuperBlock& to) {
  take_factors_k4(block + 4, to);
  for (int k = 0; k < 256; ++k) {
    const int low4 = u8(block, 48 + k / 64 * 32 + k % 32) >> (k / 32 % 2 * 4) & 15;
    to.codes[k] = static_cast<std::uint8_t>(low4 | (u8(block, 16 + k % 32) >> (k / 32) & 1) << 4);
  }
}

void take_q6_k(const std::byte* block, const SuperBlock& to) {
  const std::byte *low = block, *high = block + 128;
  for (int g = 0; g < 16; ++g) to.scales[g] = static_cast<std::int8_t>(u8(block, 192 + g));
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, quarter = k / 32 % 4;
    const int low4 = u8(low, half * 64 + quarter % 2 * 32 + k % 32) >> (quarter / 2 * 4) & 15;
    const int high2 = u8(high, half * 32 + k % 32) >> (quarter * 2) & 3;
    to.codes[k] = static_cast<std::uint8_t>(low4 | high2 << 4);
  }
}

void take_iq4_xs(const std::byte* block, const SuperBlock& to) {
  for (int g = 0; g < 8; ++g) {
    const int low4 = u8(block, 4 + g / 2) >> (g % 2 * 4) & 15,
              high2 = u16(block + 2) >> (g * 2) & 3;
    to.scales[g] = static_cast<std::int8_t>((low4 | high2 << 4) - 32);
    take_nibbles(block + 8 + g * 16, to.codes + g * 32);
  }
}

void take_grid(DType type, const std::byte* block, std::size_t b, RowParts& row) {
  const GridBlock grid = grid_block(type, reinterpret_cast<const std::uint8_t*>(block));
  const std::size_t group = linear_layout(type).group, groups = 256 / group;
  row.heads[b] = grid.scale;
  for (std::size_t g = 0; g < groups; ++g)
    row.scale_factors[b * groups + g] = grid.factors[g * group / 16];
  for (std::size_t k = 0; k < 256; ++k)
    row.codes[b * 256 + k] = static_cast<std::uint8_t>(grid.codes[k] + 128);
}

void take_block256(DType type, const std::byte* block, std::size_t b, RowParts& row) {
  struct Taker {
    void (*take)(const std::byte*, const SuperBlock&);
    std::size_t d, dmin;  // where the block keeps them
  };
  if (is_grid(type)) return take_grid(type, block, b, row);
  const Taker taker = type == DType::q2_k     ? Taker{take_q2_k, 80, 82}
                      : type == DType::q3_k   ? Taker{take_q3_k, 108, 0}
                      : type == DType::q4_k   ? Taker{take_q4_k, 0, 2}
                      : type == DType::q5_k   ? Taker{take_q5_k, 0, 2}
                      : type == DType::iq4_xs ? Taker{take_iq4_xs, 0, 0}
                                              : Taker{take_q6_k, 208, 0};
  const std::size_t groups = 256 / linear_layout(type).group;
  taker.take(block, {&row.codes[b * 256], &row.scale_factors[b * groups],
                     &row.minimum_factors[b * groups]});
  row.scales[b] = u16(block + taker.d);
  row.minima[b] = u16(block + taker.dmin) ^ 0x8000;  // K-quants subtract
}

void take_row(DType type, std::uint32_t inputs, const std::byte* source, RowParts& row) {
  const bool small = !linear_layout(type).heads();
  const std::uint32_t elements = small ? 32 : 256;
  const std::size_t block_bytes = row_bytes(type, elements);
  for (std::size_t b = 0; b < inputs / elements; ++b) {
    if (small)
      take_block32(type, source + b * block_bytes, b, row);
    else
      take_block256(type, source + b * block_bytes, b, row);
  }
}

void put_code(int bits, std::uint32_t column, std::uint32_t k, std::uint8_t code,
              std::byte* record) {
  const std::size_t step = k / 4, at = column * 4 + k % 4;
  if (bits == 8) {
    record[step * 64 + at] = std::byte{code};
    return;
  }
  const auto put = [&](std::size_t vector, int value, std::size_t shift) {
    record[vector * 64 + at] |= static_cast<std::byte>(value << shift);
  };
  int rest = code;
  if (bits >= 4) {
    put(step / 2, rest & 15, step % 2 * 4);
    rest >>= 4;
  }
  if (bits == 6 || bits < 4) {
    put(pair_plane(bits) / 64 + step / 4, rest & 3, step % 4 * 2);
    rest >>= 2;
  }
  if (bits == 5 || bits == 3) put(bit_plane(bits) / 64, rest, step);
}

template <class T>
void put_number(T value, std::uint32_t column, std::size_t group, std::byte* into) {
  std::memcpy(into + (group * kPanelOutputs + column) * sizeof(T), &value, sizeof(T));
}

void pack_quantized_row(DType type, std::uint32_t inputs, std::uint32_t column, const RowParts& row,
                        std::byte* panel) {
  const LinearLayout layout = linear_layout(type);
  const RecordParts parts = record_parts(type);
  const std::size_t groups = 32 / layout.group;
  for (std::size_t b = 0; b < inputs / 32; ++b) {
    std::byte* record = panel + record_at(parts, b);
    for (std::uint32_t k = 0; k < 32; ++k)
      put_code(layout.code_bits, column, k, row.codes[b * 32 + k], record);
    if (layout.zeros) put_number(row.zeros[b], column, 0, record + parts.zeros);
    if (layout.heads()) {
      std::byte* head = panel + head_at(parts, b);
      if (layout.head_bytes == 4)
        put_number(row.heads[b / kHeadRecords], column, 0, head);
      else
        put_number(row.scales[b / kHeadRecords], column, 0, head);
      if (layout.minimum) put_number(row.minima[b / kHeadRecords], column, 1, head);
    }
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t at = b * groups + g;
      if (layout.heads()) {
        put_number(row.scale_factors[at], column, g, record + parts.scales);
        if (layout.minimum) put_number(row.minimum_factors[at], column, g, record + parts.minima);
      } else {
        put_number(row.scales[at], column, g, record + parts.scales);
        if (layout.minimum) put_number(row.minima[at], column, g, record + parts.minima);
      }
    }
  }
}

void pack_plain_row(std::size_t element, std::uint32_t inputs, std::uint32_t column,
                    const std::byte* source, std::byte* panel) {
  for (std::size_t k = 0; k < inputs; ++k)
    std::memcpy(panel + (k * kPanelOutputs + column) * element, source + k * element, element);
}

// Kernels multiply scales with 256.
constexpr float kF8ScaleMax = 0x1p120f;

// F8_E4M3: the first block of a run has the scale of all.
void pack_f8_row(std::uint32_t inputs, std::uint32_t column, const std::byte* source,
                 std::byte* panel) {
  constexpr std::uint32_t kRun = coded_run(DType::f8_e4m3), kBlock = 32;
  const std::size_t block_bytes = row_bytes(DType::f8_e4m3, kBlock);
  for (std::uint32_t first = 0; first < inputs; first += kRun) {
    std::byte* record = panel + first / kRun * run_bytes(DType::f8_e4m3, kRun);
    float scale;
    std::memcpy(&scale, source, sizeof scale);
    std::byte* to = record + kRunScales + column;
    for (std::uint32_t k = first; k < inputs && k < first + kRun; k += kBlock) {
      for (std::uint32_t i = 0; i < kBlock; ++i, to += kPanelOutputs) {
        *to = source[sizeof scale + i];
        if ((*to & std::byte{0x7f}) == std::byte{0x7f})
          scale = std::numeric_limits<float>::quiet_NaN();
      }
      source += block_bytes;
    }
    if (!(std::fabs(scale) < kF8ScaleMax)) scale = std::numeric_limits<float>::quiet_NaN();
    put_number(scale, column, 0, record);
  }
}

void pack_nf4_row(std::uint32_t inputs, std::uint32_t column, const std::byte* source,
                  std::byte* panel) {
  constexpr std::uint32_t kRun = coded_run(DType::nf4);
  for (std::uint32_t first = 0; first < inputs; first += kRun) {
    std::byte* record = panel + first / kRun * run_bytes(DType::nf4, kRun);
    const std::byte* block = source + row_bytes(DType::nf4, first);
    std::memcpy(record + column * sizeof(float), block, sizeof(float));
    for (std::uint32_t i = 0; i < kRun / 2; ++i)
      record[kRunScales + i * kPanelOutputs + column] = block[4 + i];
  }
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
    const std::uint32_t block = layout.heads() ? 256 : 32;
    CHECK(inputs % block == 0);
    parts.codes.resize(inputs);
    parts.zeros.resize(inputs / block);
    parts.heads.resize(inputs / block);
    parts.scales.resize(inputs / block);
    parts.minima.resize(inputs / block);
    parts.scale_factors.resize(inputs / layout.group);
    parts.minimum_factors.resize(inputs / layout.group);
  }
  for (std::uint32_t o = 0; o < outputs; ++o) {
    std::byte* panel = into.data() + o / kPanelOutputs * stride;
    if (type == DType::f8_e4m3 || type == DType::nf4) {
      CHECK(inputs % dtype_info(type).block_elements == 0);
      (type == DType::nf4 ? pack_nf4_row : pack_f8_row)(inputs, o % kPanelOutputs, row(o), panel);
      continue;
    }
    if (!quantized) {
      pack_plain_row(type == DType::f32 ? 4 : 2, inputs, o % kPanelOutputs, row(o), panel);
      continue;
    }
    take_row(type, inputs, row(o), parts);
    pack_quantized_row(type, inputs, o % kPanelOutputs, parts, panel);
  }
  return {.type = type, .outputs = outputs, .inputs = inputs, .data = into.data()};
}

}  // namespace quire
