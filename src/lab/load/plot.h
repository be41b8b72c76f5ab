// lab/load/plot.h - a run as one SVG picture: how latencies are distributed, and what happened when.
#pragma once

#include <string>

#include "lab/load/run.h"

namespace quire::load {

// Four panels: TTFT and ITL (share of values below), output tokens per second and TTFT over time.
// Readable on light and dark backgrounds.
std::string plot_svg(const Measured& run, const std::string& title);

}  // namespace quire::load
