#include "tensor/dequantize.h"

#include <bit>

#include "base/check.h"
#include "base/e4m3.h"
#include "base/half.h"

namespace quire {
namespace {

using Bytes = const std::uint8_t*;

std::uint32_t u16_at(Bytes p) { return p[0] | p[1] << 8; }
std::uint32_t u32_at(Bytes p) { return u16_at(p) | u16_at(p + 2) << 16; }
float f16_at(Bytes p) { return f16_to_f32(static_cast<std::uint16_t>(u16_at(p))); }
float bf16_at(Bytes p) { return bf16_to_f32(static_cast<std::uint16_t>(u16_at(p))); }
int signed_at(Bytes p) { return static_cast<std::int8_t>(*p); }

// Blocks of 32 keep elements 0..15 in the low and 16..31 in the high halves of 16 bytes.
int nibble32(Bytes codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

// Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes. The first four of each lie
// in the low six bits of bytes 0..3 and 4..7; of the others those bytes hold the upper two bits and
// bytes 8..11 the lower four.
int scale_k(Bytes packed, int j) {
  return j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
}
int minimum_k(Bytes packed, int j) {
  return j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
}

// Q3_K: sixteen 6-bit scales in 12 bytes, the lower four bits in bytes 0..7, the upper two in
// bytes 8..11; less 32.
int scale_q3_k(Bytes packed, int j) {
  const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
  return (low | (packed[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

// Types of 256 elements store 2-bit codes in runs of 32 bytes: each run serves four groups of 32
// elements.
int crumb256(Bytes codes, int i) { return codes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }
// ... and 4-bit codes in runs of 32 bytes that serve two groups of 32.
int nibble256(Bytes codes, int i) { return codes[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15; }
// ... and single bits in 32 bytes: bit g of byte k belongs to element 32 g + k.
int bit256(Bytes bits, int i) { return bits[i % 32] >> i / 32 & 1; }

// IQ4_XS: the six bits of a group's scale lie apart, less 32.
int scale_iq4_xs(Bytes block, int group) {
  const int low = block[4 + group / 2] >> group % 2 * 4 & 15;
  return (low | static_cast<int>(u16_at(block + 2) >> 2 * group & 3) << 4) - 32;
}
// ... and its codes are eight runs as in blocks of 32.
int code_iq4_xs(Bytes block, int i) { return nibble32(block + 8 + i / 32 * 16, i % 32); }

}  // namespace

void dequantize_f32(Bytes block, float* out) { *out = std::bit_cast<float>(u32_at(block)); }
void dequantize_f16(Bytes block, float* out) { *out = f16_at(block); }
void dequantize_bf16(Bytes block, float* out) {
  *out = bf16_to_f32(static_cast<std::uint16_t>(u16_at(block)));
}

void dequantize_q4_0(Bytes block, float* out) {
  const float scale = f16_at(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(nibble32(block + 2, i) - 8);
}

void dequantize_q4_1(Bytes block, float* out) {
  const float scale = f16_at(block), minimum = f16_at(block + 2);
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(nibble32(block + 4, i)) + minimum;
}

void dequantize_q5_0(Bytes block, float* out) {
  const float scale = f16_at(block);
  const std::uint32_t fifth = u32_at(block + 2);
  for (int i = 0; i < 32; ++i) {
    const int code = nibble32(block + 6, i) | static_cast<int>(fifth >> i & 1) << 4;
    out[i] = scale * static_cast<float>(code - 16);
  }
}

void dequantize_q5_1(Bytes block, float* out) {
  const float scale = f16_at(block), minimum = f16_at(block + 2);
  const std::uint32_t fifth = u32_at(block + 4);
  for (int i = 0; i < 32; ++i) {
    const int code = nibble32(block + 8, i) | static_cast<int>(fifth >> i & 1) << 4;
    out[i] = scale * static_cast<float>(code) + minimum;
  }
}

void dequantize_q8_0(Bytes block, float* out) {
  const float scale = f16_at(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(signed_at(block + 2 + i));
}

void dequantize_iq4_nl(Bytes block, float* out) {
  const float scale = f16_at(block);
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(kLevelsIq4[nibble32(block + 2, i)]);
}

void dequantize_mxfp4(Bytes block, float* out) {
  const float scale = bf16_to_f32(mxfp4_scale(block[0]));
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(kLevelsMxfp4[nibble32(block + 1, i)]);
}

void dequantize_f8_e4m3(Bytes block, float* out) {
  const float scale = std::bit_cast<float>(u32_at(block));
  for (int i = 0; i < 32; ++i) out[i] = e4m3_to_f32(block[4 + i]) * scale;
}

namespace {
void dequantize_u4_scaled(Bytes block, float scale, float* out) {
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(nibble32(block + 3, i) - block[2]);
}
}  // namespace

void dequantize_u4(Bytes block, float* out) { dequantize_u4_scaled(block, f16_at(block), out); }
void dequantize_u4_bf16(Bytes block, float* out) {
  dequantize_u4_scaled(block, bf16_at(block), out);
}

void dequantize_nf4(Bytes block, float* out) {
  const float scale = std::bit_cast<float>(u32_at(block));
  for (int i = 0; i < 64; ++i) out[i] = kLevelsNf4[block[4 + i / 2] >> i % 2 * 4 & 15] * scale;
}

// 16 scales|minima nibbles, 64 bytes of codes, f16 scale of scales, f16 scale of minima.
void dequantize_q2_k(Bytes block, float* out) {
  const float scale = f16_at(block + 80), minimum = f16_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int group = block[i / 16];
    const float step = scale * static_cast<float>(group & 15);
    const float below = minimum * static_cast<float>(group >> 4);
    out[i] = step * static_cast<float>(crumb256(block + 16, i)) - below;
  }
}

// 32 bytes of high bits (set: no offset), 64 bytes of codes, 12 bytes of scales, f16 scale of
// scales.
void dequantize_q3_k(Bytes block, float* out) {
  const float scale = f16_at(block + 108);
  for (int i = 0; i < 256; ++i) {
    const float step = scale * static_cast<float>(scale_q3_k(block + 96, i / 16));
    const int code = crumb256(block + 32, i) - (bit256(block, i) ? 0 : 4);
    out[i] = step * static_cast<float>(code);
  }
}

// f16 scale of scales, f16 scale of minima, 12 bytes of both, 128 bytes of codes.
void dequantize_q4_k(Bytes block, float* out) {
  const float scale = f16_at(block), minimum = f16_at(block + 2);
  for (int i = 0; i < 256; ++i) {
    const float step = scale * static_cast<float>(scale_k(block + 4, i / 32));
    const float below = minimum * static_cast<float>(minimum_k(block + 4, i / 32));
    out[i] = step * static_cast<float>(nibble256(block + 16, i)) - below;
  }
}

// As Q4_K, with 32 bytes of fifth bits before the codes.
void dequantize_q5_k(Bytes block, float* out) {
  const float scale = f16_at(block), minimum = f16_at(block + 2);
  for (int i = 0; i < 256; ++i) {
    const float step = scale * static_cast<float>(scale_k(block + 4, i / 32));
    const float below = minimum * static_cast<float>(minimum_k(block + 4, i / 32));
    const int code = nibble256(block + 48, i) | bit256(block + 16, i) << 4;
    out[i] = step * static_cast<float>(code) - below;
  }
}

// 128 bytes of low halves (runs of 64 that serve two groups of 64), 64 bytes of upper two bits, 16
// signed scales, f16.
void dequantize_q6_k(Bytes block, float* out) {
  const float scale = f16_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const float step = scale * static_cast<float>(signed_at(block + 192 + i / 16));
    const int low = block[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
    const int code = (low | crumb256(block + 128, i) << 4) - 32;
    out[i] = step * static_cast<float>(code);
  }
}

// f16 scale of scales, their upper and lower bits, 128 bytes of codes.
void dequantize_iq4_xs(Bytes block, float* out) {
  const float scale = f16_at(block);
  for (int i = 0; i < 256; ++i) {
    const float step = scale * static_cast<float>(scale_iq4_xs(block, i / 32));
    out[i] = step * static_cast<float>(kLevelsIq4[code_iq4_xs(block, i)]);
  }
}

std::uint32_t affine_bits(DType type) {
  switch (type) {
    case DType::q4_0:
    case DType::q4_1:
    case DType::q4_k:
    case DType::u4:
    case DType::u4_bf16:
      return 4;
    case DType::q5_0:
    case DType::q5_1:
    case DType::q5_k:
      return 5;
    case DType::q8_0:
    case DType::iq4_nl:
    case DType::iq4_xs:
    case DType::mxfp4:
      return 8;
    default:
      return 0;
  }
}

AffineGroup affine_group(DType type, const std::byte* row, std::uint64_t group) {
  const DTypeInfo& info = dtype_info(type);
  const Bytes block =
      reinterpret_cast<Bytes>(row) + group * 32 / info.block_elements * info.block_bytes;
  AffineGroup out{f16_at(block), 0, {}};
  const auto fill = [&](auto code) {
    for (int i = 0; i < 32; ++i) out.codes[i] = static_cast<std::uint8_t>(code(i));
  };
  const auto with_fifth = [&](Bytes bits, Bytes codes) {
    const std::uint32_t fifth = u32_at(bits);
    fill([&](int i) { return nibble32(codes, i) | static_cast<int>(fifth >> i & 1) << 4; });
  };
  switch (type) {
    case DType::q4_0:
      out.offset = -8 * out.scale;
      fill([&](int i) { return nibble32(block + 2, i); });
      return out;
    case DType::q4_1:
      out.offset = f16_at(block + 2);
      fill([&](int i) { return nibble32(block + 4, i); });
      return out;
    case DType::q5_0:
      out.offset = -16 * out.scale;
      with_fifth(block + 2, block + 6);
      return out;
    case DType::q5_1:
      out.offset = f16_at(block + 2);
      with_fifth(block + 4, block + 8);
      return out;
    case DType::q8_0:
      out.offset = -128 * out.scale;
      fill([&](int i) { return signed_at(block + 2 + i) + 128; });
      return out;
    case DType::iq4_nl:
      out.offset = -128 * out.scale;
      fill([&](int i) { return kLevelsIq4[nibble32(block + 2, i)] + 128; });
      return out;
    case DType::iq4_xs: {
      const int j = static_cast<int>(group % 8);
      out.scale *= static_cast<float>(scale_iq4_xs(block, j));
      out.offset = -128 * out.scale;
      fill([&](int i) { return kLevelsIq4[code_iq4_xs(block, 32 * j + i)] + 128; });
      return out;
    }
    case DType::mxfp4:
      out.scale = bf16_to_f32(mxfp4_scale(block[0]));
      out.offset = -128 * out.scale;
      fill([&](int i) { return kLevelsMxfp4[nibble32(block + 1, i)] + 128; });
      return out;
    case DType::u4:
    case DType::u4_bf16:
      if (type == DType::u4_bf16) out.scale = bf16_at(block);
      out.offset = -static_cast<float>(block[2]) * out.scale;
      fill([&](int i) { return nibble32(block + 3, i); });
      return out;
    case DType::q4_k:
    case DType::q5_k: {
      const int j = static_cast<int>(group % 8), first = 32 * j;
      out.scale *= static_cast<float>(scale_k(block + 4, j));
      out.offset = -(f16_at(block + 2) * static_cast<float>(minimum_k(block + 4, j)));
      if (type == DType::q4_k)
        fill([&](int i) { return nibble256(block + 16, first + i); });
      else
        fill([&](int i) {
          return nibble256(block + 48, first + i) | bit256(block + 16, first + i) << 4;
        });
      return out;
    }
    default:
      CHECK(false);
      return out;
  }
}

}  // namespace quire
