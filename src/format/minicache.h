// format/minicache.h - the direction that two neighbouring layers share (minicache.cc).
#pragma once

#include <cstdint>

namespace quire {

// e = sin((1 - t) angle) / sin(angle) * u + sin(t angle) / sin(angle) * w, for the directions u of a
// and w of b, of length 1; where the sine vanishes, on the line between them. A row of zeros has the
// direction of the other. Returns the angle.
double shared_direction(const float* a, const float* b, std::uint32_t dim, double t, float* e);

}  // namespace quire
