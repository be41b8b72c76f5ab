#include "kernels/encoded.h"

#include <algorithm>

#include "base/check.h"
#include "format/families.h"
#include "kernels/attend.h"
#include "kernels/encoded_layout.h"

namespace quire {
namespace {

static_assert(kAttendSplit % kEncodedUnit == 0);

// A side of a codec: how its numbers are read.
struct Reading {
  const Codec* codec;
  EncodedKind kind;
  EncodedScales keys, values;
  float key_centre, value_centre;
  float key_step = 1, value_step = 1;
  const std::uint8_t* key_levels = nullptr;
  const std::uint8_t* value_levels = nullptr;
};

using Kind = EncodedKind;
using Scales = EncodedScales;

constexpr Reading floats(const Codec& c, Kind kind, Scales scales) {
  return {&c, kind, scales, scales, 0, 0};
}
constexpr Reading even(const Codec& c, Scales scales, float centre) {
  return {&c, Kind::codes, scales, scales, centre, centre};
}
constexpr Reading turbo(const Codec& c, float centre, float unit, const std::uint8_t* levels) {
  return {&c, Kind::codes, Scales::slot_f16, Scales::slot_pair, 128, centre, unit, 1, levels};
}

const Reading kReadings[] = {
    floats(kF32, Kind::f32, Scales::none),
    floats(kF16, Kind::f16, Scales::none),
    floats(kBf16, Kind::bf16, Scales::none),
    floats(kFp8E4m3, Kind::e4m3, Scales::slot_power),
    floats(kFp8E5m2, Kind::e5m2, Scales::slot_power),
    even(kInt8, Scales::slot_f16, 128),
    even(kQ8_0, Scales::slot_f16, 128),
    even(kQ4_0, Scales::slot_f16, 8),
    even(kHadamardInt4, Scales::slot_f16, 7.5f),
    even(kHadamardInt3, Scales::slot_f16, 3.5f),
    even(kInt3, Scales::slot_f16, 3.5f),
    even(kHadamardInt2, Scales::slot_f16, 1.5f),
    even(kHadamardInt4Head, Scales::slot_f16, 7.5f),
    even(kHadamardInt2Head, Scales::slot_f16, 1.5f),
    even(kQ5_1, Scales::slot_pair, 15.5f),
    even(kQ4_1, Scales::slot_pair, 7.5f),
    {&kKivi4, Kind::codes, Scales::page_pair, Scales::slot_pair, 7.5f, 7.5f},
    {&kKivi2, Kind::codes, Scales::page_pair, Scales::slot_pair, 1.5f, 1.5f},
    turbo(kTurbo4, 7.5f, kTurboUnit4, kTurboLevels4),
    turbo(kTurbo3, 3.5f, kTurboUnit3, kTurboLevels3),
    {&kNvfp4, Kind::codes, Scales::slot_fp8, Scales::slot_fp8, 12, 12, 0.5f, 0.5f, kNvfp4Levels,
     kNvfp4Levels},
};

}  // namespace

EncodedPart encoded_part(const Codec& codec, Side side, Rows rows) {
  DCHECK(check_rows(codec, rows).ok());
  const std::size_t page_bytes = codec_bytes(codec, side, rows);
  rows.dim /= codec.layers;
  EncodedPart p{.codec = &codec,
                .side = side,
                .rows = rows,
                .page_bytes = page_bytes,
                .prepared_bytes = 0,
                .kind = Kind::decoded,
                .scales = Scales::none,
                .bits = codec.bits,
                .terms = 1,
                .top = 127,
                .group = rows.dim,
                .block = rows.dim,
                .centre = 0,
                .step = 1,
                .levels = nullptr,
                .scales_at = 0,
                .exponents_at = 0,
                .plane_at = 0};
  const bool keys = side == Side::keys;
  for (const Reading& r : kReadings) {
    if (r.codec != &codec) continue;
    p.kind = r.kind;
    p.scales = keys ? r.keys : r.values;
    p.centre = keys ? r.key_centre : r.value_centre;
    p.step = keys ? r.key_step : r.value_step;
    p.levels = keys ? r.key_levels : r.value_levels;
  }
  if (p.kind == Kind::codes) {
    const bool by_page = p.scales == Scales::page_pair;
    p.group = codec.group == 0 || by_page ? rows.dim : codec.group;
    p.block = by_page ? rows.dim : std::min(p.group, 128u);
    const bool fine = (by_page && codec.bits == 4) || (!keys && &codec == &kQ4_0);
    p.terms = codec.bits > 4 || fine ? 2 : 1;
    p.top = p.terms == 2 ? 127 * 128 : keys ? 127 : 255;
    p.scales_at = column_offset(codec, side, rows, 0);
    p.exponents_at = column_offset(codec, side, rows, 1);
    p.plane_at = Codes(nullptr, side, rows, codec.bits & ~1u).bytes();
  } else if (p.scales == Scales::slot_power) {
    p.exponents_at = column_offset(codec, side, rows, 1);
  }
  p.prepared_bytes = prepared_bytes(p);
  return p;
}

bool can_be_latent(const Codec& codec) {
  for (const Reading& r : kReadings)
    if (r.codec == &codec)
      return r.kind == Kind::codes && r.keys == Scales::slot_f16 && r.values == Scales::slot_f16 &&
             (codec.bits == 4 || codec.bits == 8);
  return false;
}

const EncodedKernels& encoded_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return kEncodedScalar;
    case Isa::avx2:
      return kEncodedAvx2;
    case Isa::avx512:
      return kEncodedAvx512;
    case Isa::vnni:
    case Isa::bf16:
      return kEncodedVnni;
  }
  return kEncodedScalar;
}

}  // namespace quire
