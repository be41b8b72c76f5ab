// cli/calibrations.h - what `quire calibrate` has kept for a model.
#pragma once

#include <string>
#include <vector>

#include "format/calibration.h"

namespace quire::cli {

// Loads the calibrations that exist. A format whose calibration is missing is refused when it is
// used.
Result<std::vector<Calibration>> stored_calibrations(const std::string& model);

}  // namespace quire::cli
