// The calibrated codecs as entries of the table: where their parts lie (calibration.h defines the
// bytes), and a calibration for numbers of unit variance, used where no other is given.
#include <map>
#include <memory>
#include <mutex>

#include "format/calibration.h"
#include "format/families.h"

namespace quire {
namespace {

// Lloyd-Max levels of a normal distribution, the positive half.
constexpr float kOneBit[] = {0.7979f}, kTwoBits[] = {0.4528f, 1.5104f},
                kThreeBits[] = {0.2451f, 0.7560f, 1.3439f, 2.1519f},
                kFourBits[] = {0.1284f, 0.3880f, 0.6568f, 0.9423f,
                               1.2562f, 1.6180f, 2.0690f, 2.7326f};
constexpr const float* kNormal[] = {nullptr, kOneBit, kTwoBits, kThreeBits, kFourBits};
constexpr float kReach = 2.75f;  // of kvquant's plain lane

float normal_level(std::uint32_t bits, std::uint32_t code) {
  const std::uint32_t half = 1u << (bits - 1);
  return code < half ? -kNormal[bits][half - 1 - code] : kNormal[bits][code - half];
}

Calibration make_plain(const Codec& codec, std::uint32_t dim) {
  const bool coupled = codec.channels > 1;
  Calibration c{coupled ? CalibrationKind::coupled : CalibrationKind::kvquant,
                dim,
                codec.channels,
                codec.bits * codec.channels,
                {{}},
                {}};
  LaneCalibration& lane = c.lanes[0];
  if (!coupled) {
    for (std::uint32_t i = 0; i < 1u << codec.bits; ++i)
      lane.levels.push_back(normal_level(codec.bits, i) / kReach);
    lane.zero.assign(dim, 0.0f);
    lane.range.assign(dim, kReach);
    return c;
  }
  for (std::uint32_t g = 0; g < dim / codec.channels; ++g)
    for (std::uint32_t code = 0; code < 1u << c.bits; ++code)
      for (std::uint32_t j = 0; j < codec.channels; ++j)
        lane.centroids.push_back(
            normal_level(codec.bits, code >> (j * codec.bits) & ((1u << codec.bits) - 1)));
  return c;
}

CodecLayout layout(const Codec& c, Side side, Rows rows) {
  if (c.channels > 1) return {.columns = {Column{1, (rows.dim * c.bits + 7) / 8}}};
  return {.code_bits = c.bits,
          .columns = {Column{1, 4 * kvquant_sparse_max(rows.dim)},
                      side == Side::values ? Column{2, 2} : Column{}}};
}

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  const Calibration& plain = plain_calibration(c, rows.dim);
  encode_calibrated(plain, plain.lanes[0], side, rows, in, page);
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  const Calibration& plain = plain_calibration(c, rows.dim);
  decode_calibrated(plain, plain.lanes[0], side, rows, page, out);
}

constexpr Codec calibrated(std::string_view name, std::uint32_t bits, std::uint32_t channels) {
  return {.name = name,
          .research = true,
          .bits = bits,
          .calibrated = true,
          .channels = channels,
          .layout = layout,
          .encode = encode,
          .decode = decode};
}

}  // namespace

bool Calibration::fits(const Codec& codec) const {
  return codec.calibrated && channels == codec.channels && bits == codec.bits * codec.channels &&
         (kind == CalibrationKind::coupled) == (codec.channels > 1);
}

const Calibration& plain_calibration(const Codec& codec, std::uint32_t dim) {
  static std::mutex mutex;
  static std::map<std::pair<const Codec*, std::uint32_t>, std::unique_ptr<Calibration>> made;
  const std::lock_guard lock(mutex);
  auto& c = made[{&codec, dim}];
  if (!c) c = std::make_unique<Calibration>(make_plain(codec, dim));
  return *c;
}

void encode_calibrated(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                       const float* in, std::byte* page) {
  if (c.kind == CalibrationKind::coupled)
    cq_encode(c, lane, rows, in, page);
  else
    kvquant_encode(c, lane, side, rows, in, page);
}

void decode_calibrated(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                       const std::byte* page, float* out) {
  if (c.kind == CalibrationKind::coupled)
    cq_decode(c, lane, rows, page, out);
  else
    kvquant_decode(c, lane, side, rows, page, out);
}

extern const Codec kKvquant3 = calibrated("kvquant-3", 3, 1);
extern const Codec kCq4 = calibrated("cq-4", 4, 2);
extern const Codec kCq3 = calibrated("cq-3", 3, 2);
extern const Codec kCq2 = calibrated("cq-2", 2, 4);
extern const Codec kCq1 = calibrated("cq-1", 1, 8);

}  // namespace quire
