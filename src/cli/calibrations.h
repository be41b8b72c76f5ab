// cli/calibrations.h - what `quire calibrate` has kept for a model.
#pragma once

#include <string>
#include <vector>

#include "format/calibration.h"

namespace quire::cli {

// Those there are; the others are missed when they are asked for.
Result<std::vector<Calibration>> stored_calibrations(const std::string& model);

}  // namespace quire::cli
