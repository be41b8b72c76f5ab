#include "format/calibration.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/hash.h"

namespace quire {
namespace {

constexpr char kMagic[9] = "QCAL0001";
constexpr std::size_t kHeader = 8 + 5 * 4;
constexpr std::uint32_t kLanesMax = 1 << 20;

// How many floats each part of a lane has.
struct LaneSizes {
  std::size_t levels = 0, channels = 0, centroids = 0;
  std::size_t total() const { return levels + 2 * channels + centroids; }
};

LaneSizes lane_sizes(const Calibration& c) {
  if (c.kind == CalibrationKind::kvquant) return {std::size_t{1} << c.bits, c.dim, 0};
  return {0, 0, (std::size_t{1} << c.bits) * c.dim};
}

Status check(const Calibration& c, const LaneCalibration& lane) {
  for (const auto* part : {&lane.levels, &lane.zero, &lane.range, &lane.centroids})
    for (const float x : *part)
      if (!std::isfinite(x)) return Error{Code::corrupt, "calibration: a number is not finite"};
  for (std::size_t i = 1; i < lane.levels.size(); ++i)
    if (lane.levels[i - 1] > lane.levels[i])
      return Error{Code::corrupt, "calibration: levels do not ascend"};
  for (const float r : lane.range)
    if (!(r > 0)) return Error{Code::corrupt, "calibration: a range is not above 0"};
  return {};
}

}  // namespace

std::string serialize_calibration(const Calibration& c) {
  std::string out(kMagic, 8);
  const auto put = [&](const void* from, std::size_t bytes) {
    out.append(static_cast<const char*>(from), bytes);
  };
  for (const std::uint32_t n : {static_cast<std::uint32_t>(c.kind), c.dim, c.channels, c.bits,
                                static_cast<std::uint32_t>(c.lanes.size())})
    put(&n, sizeof n);
  for (const LaneCalibration& lane : c.lanes)
    for (const auto* part : {&lane.levels, &lane.zero, &lane.range, &lane.centroids})
      put(part->data(), part->size() * sizeof(float));
  return out;
}

Result<Calibration> parse_calibration(std::span<const std::byte> file) {
  if (file.size() < kHeader || std::memcmp(file.data(), kMagic, 8) != 0)
    return Error{Code::corrupt, "not a KV calibration (it would start with QCAL0001)"};
  std::uint32_t header[5];
  std::memcpy(header, file.data() + 8, sizeof header);
  const auto [kind, dim, channels, bits, lanes] = header;
  Calibration c{static_cast<CalibrationKind>(kind), dim, channels, bits, {}, {}};
  if (kind < 1 || kind > 2 || dim == 0 || dim > kCodecDimMax || dim % 32 != 0 || bits < 1 ||
      bits > 8 || channels < 1 || channels > 8 || dim % channels != 0 || lanes > kLanesMax ||
      (c.kind == CalibrationKind::kvquant && channels != 1))
    return Error{
        Code::corrupt,
        fmt::format("calibration of kind {} for heads of {}, {} channels, {} bits, {} lanes "
                    "makes no sense",
                    kind, dim, channels, bits, lanes)};
  const LaneSizes sizes = lane_sizes(c);
  if (file.size() != kHeader + lanes * sizes.total() * sizeof(float))
    return Error{Code::corrupt,
                 fmt::format("calibration has {} bytes, {} lanes of this kind take {}", file.size(),
                             lanes, kHeader + lanes * sizes.total() * sizeof(float))};
  const std::byte* at = file.data() + kHeader;
  const auto take = [&](std::vector<float>& into, std::size_t count) {
    into.resize(count);
    if (count != 0) std::memcpy(into.data(), at, count * sizeof(float));
    at += count * sizeof(float);
  };
  c.lanes.resize(lanes);
  for (LaneCalibration& lane : c.lanes) {
    take(lane.levels, sizes.levels);
    take(lane.zero, sizes.channels);
    take(lane.range, sizes.channels);
    take(lane.centroids, sizes.centroids);
    TRY_STATUS(check(c, lane));
  }
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(file.data(), file.size()));
  c.digest.assign(reinterpret_cast<const char*>(digest.digest), sizeof digest.digest);
  return c;
}

}  // namespace quire
