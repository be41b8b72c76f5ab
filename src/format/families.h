// format/families.h - what the codec files share with the table and with each other.
#pragma once

#include "format/codes.h"
#include "format/levels.h"

namespace quire {

// Elements of whole bytes: keys [dim][P], values [P][dim].
inline Column elements(Side side, Rows rows, std::uint32_t bytes) {
  return side == Side::keys ? Column{rows.dim, bytes} : Column{1, bytes * rows.dim};
}

inline std::size_t element_index(Side side, Rows rows, std::uint32_t slot, std::uint32_t d) {
  return side == Side::keys ? std::size_t{d} * rows.tokens + slot
                            : std::size_t{slot} * rows.dim + d;
}

// Asymmetric codes (asymmetric.cc): a group's step and smallest element, in f16.
struct AsymmetricScale {
  std::uint16_t step, least;

  std::uint32_t code(float x, std::uint32_t bits) const {
    return round_code((x - f16_to_f32(least)) * (1 / f16_to_f32(step)), (1u << bits) - 1);
  }
  float value(std::uint32_t code) const {
    return static_cast<float>(code) * f16_to_f32(step) + f16_to_f32(least);
  }
};
AsymmetricScale asymmetric_scale(const float* x, std::size_t stride, std::uint32_t n,
                                 std::uint32_t bits);

// Encodes and decodes rows of asymmetric codes, c.bits wide, in groups of c.group (0: the whole
// row). Some codecs use these functions for keys and values, others for values only.
CodecLayout asymmetric_layout(const Codec& c, Side side, Rows rows);
void encode_asymmetric(const Codec& c, Side side, Rows rows, const float* in, std::byte* page);
void decode_asymmetric(const Codec& c, Side side, Rows rows, const std::byte* page, float* out);

extern const Codec kF32, kF16, kBf16;   // exact.cc
extern const Codec kFp8E4m3, kFp8E5m2;  // fp8.cc
extern const Codec kInt8, kQ8_0, kQ4_0, kHadamardInt4, kHadamardInt3, kHadamardInt2,
    kHadamardInt4Head, kHadamardInt2Head, kInt3;       // symmetric.cc
extern const Codec kQ5_1, kQ4_1;                       // asymmetric.cc
extern const Codec kKivi4, kKivi2;                     // kivi.cc
extern const Codec kTurbo4, kTurbo3;                   // turbo.cc
extern const Codec kNvfp4;                             // nvfp4.cc
extern const Codec kPolarRec;                          // polar.cc
extern const Codec kQjl;                               // qjl.cc
extern const Codec kMinicache;                         // minicache.cc
extern const Codec kKvquant3, kCq4, kCq3, kCq2, kCq1;  // calibrated.cc

}  // namespace quire
