// lab/formats/calibrate.h - fits the calibrated codecs (format/calibration.h) to a model's lanes,
// on a text.
//
//   TRY(Calibration c, calibrate(runtime, {.codec = find_codec("kvquant-3").value()}, tokens));
//   write_file(path, serialize_calibration(c));
//
// The model reads the text in windows with an exact cache, and RoPE is undone for its keys. Every
// lane is then fitted by itself: minutes for coupled quantization, seconds for KVQuant.
#pragma once

#include <functional>

#include "engine/runtime.h"

namespace quire {

struct CalibrationQuestion {
  const Codec* codec;
  std::uint32_t window = 2048;
  std::function<void(std::size_t done, std::size_t all)> progress = {};  // lanes fitted
};

// The runtime's cache must be f16. It holds all tokens meanwhile.
Result<Calibration> calibrate(Runtime& runtime, const CalibrationQuestion& question,
                              std::span<const TokenId> tokens);

// One lane from its rows [count][dim].
LaneCalibration fit_kvquant(const Codec& codec, Side side, std::span<const float> rows,
                            std::uint32_t dim);
LaneCalibration fit_coupled(const Codec& codec, std::span<const float> rows, std::uint32_t dim);

}  // namespace quire
