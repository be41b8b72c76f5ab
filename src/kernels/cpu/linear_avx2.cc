#include <immintrin.h>

#include "kernels/cpu/linear_multiply.h"

namespace quire {
namespace {

struct Avx2 {
  using I = __m256i;
  using F = __m256;
  static constexpr int kElements = 8, kVectors = 2, kRegisters = 16;

  // Rows of a tile: accumulators should stay in registers.
  template <bool kTwoTerms>
  static constexpr int rows_max() {
    return kTwoTerms ? 2 : 4;
  }

  static void prefetch(const std::byte* p) { _mm_prefetch(p, _MM_HINT_T1); }
  static I zero_int() { return _mm256_setzero_si256(); }
  static F zero() { return _mm256_setzero_ps(); }
  static I load_int(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static I broadcast(const std::byte* p) { return _mm256_set1_epi32(load_as<std::int32_t>(p)); }
  static F broadcast_float(const std::byte* p) { return _mm256_castsi256_ps(broadcast(p)); }
  static F load_float(const std::byte* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static F load_half(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load_brain(const std::byte* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  static void store(float* p, F v, std::uint32_t count) {
    if (count >= 8) return _mm256_storeu_ps(p, v);
    const __m256i element = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), element),
                        v);
  }
  static I load_bytes(const std::byte* p) {  // eight int8, widened
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  template <int kBits>
  static I shift_left_16(I v) {
    return _mm256_slli_epi16(v, kBits);
  }
  template <int kBits>
  static I shift_right_16(I v) {
    return _mm256_srli_epi16(v, kBits);
  }
  static I mask(I v, int byte) {
    return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(byte)));
  }
  static I merge(I a, I v, int byte) { return _mm256_or_si256(a, mask(v, byte)); }
  static I look_up(const std::uint8_t* table, I v) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), v);
  }
  static F look_up_float(const float* table, I v) {  // of sixteen
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), v),
                 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), v);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(v, 28)));
  }
  static F one_float(float v) { return _mm256_set1_ps(v); }
  static I load_unsigned_bytes(const std::byte* p) {  // eight, widened
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // Eight e4m3 as f16 bits that lie alike, which are 2^-8 of their values.
  static F load_e4m3(const std::byte* p) {
    const __m128i high =
        _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 8);
    const __m128i size = _mm_and_si128(_mm_srli_epi16(high, 1), _mm_set1_epi16(0x3f80));
    return _mm256_cvtph_ps(
        _mm_or_si128(size, _mm_and_si128(high, _mm_set1_epi16(static_cast<short>(0x8000)))));
  }
  template <int kBits>
  static I shift_left(I v) {
    return _mm256_slli_epi32(v, kBits);
  }
  static I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I mul_int(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

  static constexpr bool kHasVnni = false;
  static I multiply_pairs(I codes, I a) { return _mm256_maddubs_epi16(codes, a); }
  static I add_16(I a, I b) { return _mm256_add_epi16(a, b); }
  static I widen_pairs(I v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
  // Signed times signed: the sign moves to the activation, and 128 * 127 * 2 still fits 16 bits.
  static I dot_bytes(I sum, I codes, I a) {
    const I w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));  // takes the offset away
    return add_int(sum, widen_pairs(multiply_pairs(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))));
  }
};

inline std::uint32_t largest(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(m));
}

inline std::int32_t total(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

// Thirty-two small integers as bytes, in order.
inline __m256i to_bytes(const __m256i (&v)[4]) {
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

template <bool kWide>
inline void quantize_block(const float* x, bool halves, std::uint32_t slot, std::byte* cell) {
  __m256i top_bits = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i)
    top_bits =
        _mm256_max_epu32(top_bits, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)),
                                                    _mm256_set1_epi32(0x7fffffff)));
  const std::uint32_t bits = largest(top_bits);
  float amax;
  std::memcpy(&amax, &bits, 4);
  const float top = kWide ? kInt16Max : kInt8Max;
  const bool finite = bits < 0x7f800000u, coded = finite && amax >= kActivationMin;
  const float scale = !finite ? __builtin_nanf("") : coded ? amax / top : 0.0f;
  __m256i q[4], coarse[4], fine[4];
  const __m256 inverse = _mm256_set1_ps(top / amax);
  for (int i = 0; i < 4; ++i) {
    q[i] = coded ? _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse))
                 : _mm256_setzero_si256();
    coarse[i] = kWide ? _mm256_srai_epi32(_mm256_add_epi32(q[i], _mm256_set1_epi32(64)), 7) : q[i];
    fine[i] = _mm256_sub_epi32(q[i], _mm256_slli_epi32(coarse[i], 7));
  }
  auto* codes = reinterpret_cast<__m256i*>(cell + kCellCodes + slot * 32);
  _mm256_storeu_si256(codes, to_bytes(coarse));
  if (kWide)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(cell + kCellFine + slot * 32), to_bytes(fine));
  const std::int32_t sums[2] = {total(_mm256_add_epi32(q[0], q[1])),
                                total(_mm256_add_epi32(q[2], q[3]))};
  store_sums(scale, sums, halves, slot, cell);
}

}  // namespace

const LinearKernels kLinearAvx2 = {quantize, multiply_tiles<Avx2>};

}  // namespace quire
