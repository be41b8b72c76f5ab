// kernels/cpu/encoded_impl.h - which of these kernels reads which part; encoded_avx2.cc,
// encoded_avx512.cc and encoded_vnni.cc are this file. Shapes that do not fill vectors, and codecs
// without a kernel of their own, are read by the reference.
#pragma once

#include "kernels/cpu/encoded_floats.h"
#include "kernels/cpu/encoded_keys.h"
#include "kernels/cpu/encoded_latent.h"
#include "kernels/cpu/encoded_seal.h"
#include "kernels/cpu/encoded_values.h"

namespace quire {
namespace {

void scores(const EncodedPart& p, const EncodedUnit& unit, const std::byte* prepared,
            std::uint32_t n, float* dots) {
  const auto by = [&](auto f) { f(p, unit, prepared, n, dots); };
  const bool fits = p.rows.tokens % 16 == 0 && p.rows.dim % 16 == 0;
  if (!fits) return by(kEncodedScalar.scores);
  switch (p.kind) {
    case EncodedKind::f32:
      return by(score_floats<float>);
    case EncodedKind::f16:
      return by(score_floats<F16>);
    case EncodedKind::bf16:
      return by(score_floats<Bf16>);
    case EncodedKind::e4m3:
      return by(score_floats<E4m3>);
    case EncodedKind::e5m2:
      return by(score_floats<E5m2>);
    case EncodedKind::decoded:
      return by(score_decoded);
    case EncodedKind::codes:
      break;
  }
  const bool levels = p.levels != nullptr;
  if (p.scales == EncodedScales::page_pair)
    return p.bits == 4 ? by(score_channels<4, 2>) : by(score_channels<2, 1>);
  if (p.scales == EncodedScales::slot_fp8) return by(score_codes<4, 24, KeyScales::fp8, 1>);
  if (p.scales == EncodedScales::slot_pair)
    return p.bits == 5 ? by(score_codes<5, 0, KeyScales::pair, 2>)
                       : by(score_codes<4, 0, KeyScales::pair, 1>);
  switch (p.bits) {
    case 8:
      return by(score_codes<8, 0, KeyScales::slot, 2>);
    case 4:
      return levels ? by(score_codes<4, 255, KeyScales::slot, 1>)
                    : by(score_codes<4, 0, KeyScales::slot, 1>);
    case 3:
      return levels ? by(score_codes<3, 255, KeyScales::slot, 1>)
                    : by(score_codes<3, 0, KeyScales::slot, 1>);
    default:
      return by(score_codes<2, 0, KeyScales::slot, 1>);
  }
}

void add_values(const EncodedPart& p, const EncodedUnit& unit, const float* weights,
                std::uint32_t n, const float* keep, const float* take, float* out) {
  const auto by = [&](auto f) { f(p, unit, weights, n, keep, take, out); };
  const bool fits = p.rows.tokens % 16 == 0 && p.rows.dim % 16 == 0;
  if (!fits) return by(kEncodedScalar.add_values);
  switch (p.kind) {
    case EncodedKind::f32:
      return by(value_floats<float>);
    case EncodedKind::f16:
      return by(value_floats<F16>);
    case EncodedKind::bf16:
      return by(value_floats<Bf16>);
    case EncodedKind::e4m3:
      return by(value_floats<E4m3>);
    case EncodedKind::e5m2:
      return by(value_floats<E5m2>);
    case EncodedKind::decoded:
      return by(value_decoded);
    case EncodedKind::codes:
      break;
  }
  if (p.scales == EncodedScales::slot_fp8) return by(value_codes<4, 24, 1, 1>);
  const bool wide = p.group != 32;
  switch (p.bits) {
    case 8:
      return wide ? by(value_codes<8, 0, 2, 4>) : by(value_codes<8, 0, 2, 2>);
    case 5:
      return by(value_codes<5, 0, 2, 2>);
    case 4:
      if (p.terms == 2) return by(value_codes<4, 0, 2, 2>);
      return wide ? by(value_codes<4, 0, 1, 4>) : by(value_codes<4, 0, 1, 2>);
    case 3:
      return wide ? by(value_codes<3, 0, 1, 4>) : by(value_codes<3, 0, 1, 2>);
    default:
      return wide ? by(value_codes<2, 0, 1, 4>) : by(value_codes<2, 0, 1, 2>);
  }
}

}  // namespace
}  // namespace quire
