// format/calibration.h - the parameters of a lane that the calibrated codecs (kvquant-3, cq-N)
// need, and the file that holds them. `quire calibrate` writes it.
//
// There is one LaneCalibration per (layer, KV head, side). The digest of the file is part of the
// block key. These codecs take and return keys before RoPE.
//
//   Calibration c = parse_calibration(bytes).value();
//   cq_encode(c, c.lanes[i], rows, floats, page);
//
// File: "QCAL0001", then u32 kind, dim, channels, bits, lane count (little-endian); then per lane
// its floats, f32: kvquant 2^bits levels, dim zeros, dim ranges; cq [dim / channels][2^bits]
// [channels] centroids. Nothing else; every float finite, levels ascending, ranges above 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/codec.h"

namespace quire {

enum class CalibrationKind : std::uint32_t { kvquant = 1, coupled = 2 };

struct LaneCalibration {
  std::vector<float> levels;  // kvquant: of the normalized elements
  std::vector<float> zero,
      range;                     // kvquant keys: x is normalized to (x - zero) / range, per channel
  std::vector<float> centroids;  // coupled
};

struct Calibration {
  CalibrationKind kind = CalibrationKind::kvquant;
  std::uint32_t dim = 0;
  std::uint32_t channels = 1;          // coupled: neighbouring channels that share a code
  std::uint32_t bits = 3;              // of a code
  std::vector<LaneCalibration> lanes;  // [layer][KV head][side], keys first
  std::string digest;                  // of the file; 16 bytes

  bool fits(const Codec& codec) const;
};

// A calibration for normally distributed numbers, for the codec's own encode and decode. Lives
// until the program ends.
const Calibration& plain_calibration(const Codec& codec, std::uint32_t dim);

void encode_calibrated(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                       const float* in, std::byte* page);
void decode_calibrated(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                       const std::byte* page, float* out);

Result<Calibration> parse_calibration(std::span<const std::byte> file);
std::string serialize_calibration(const Calibration& c);

// Coupled quantization: the nearest centroid of each group of channels, the first of equals. Page:
// codes [P][dim / channels], packed per slot, low bits first; rows are rounded up to bytes.
std::size_t cq_bytes(const Calibration& c, Rows rows);
void cq_encode(const Calibration& c, const LaneCalibration& lane, Rows rows, const float* in,
               std::byte* page);
void cq_decode(const Calibration& c, const LaneCalibration& lane, Rows rows, const std::byte* page,
               float* out);

// KVQuant: the nearest of 2^bits levels of the normalized element. The elements that lie farthest
// outside [-1, 1], at most kvquant_sparse_max of a row, are sparse: they are kept separately as
// f16. Keys are normalized by the lane's calibration. Values are normalized by their own row: zero
// and range are the middle and half width of its other elements. Page, each part at a multiple of
// 64 bytes:
//   codes     planes of `bits`
//   sparse    [P][sparse_max] of (u16 channel, f16 value); channel 0xffff is none
//   scales    values only: zeros [P], ranges [P], f16
std::uint32_t kvquant_sparse_max(std::uint32_t dim);  // 1 % of a row, one at least
std::size_t kvquant_bytes(const Calibration& c, Side side, Rows rows);
void kvquant_encode(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                    const float* in, std::byte* page);
void kvquant_decode(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                    const std::byte* page, float* out);

}  // namespace quire
