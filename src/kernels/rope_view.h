// kernels/rope_view.h - cosines and sines of rotary positions, as kernels see them; model/rope.h makes
// them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

struct RopeView {
  static constexpr std::uint32_t kChunk =
      256;  // positions per piece, so that growing moves nothing

  const float* const* chunks = nullptr;  // null: nothing turns
  std::uint32_t half = 0;

  const float* cosines(std::uint32_t position) const {
    return chunks[position / kChunk] + std::size_t{position % kChunk} * 2 * half;
  }
  const float* sines(std::uint32_t position) const { return cosines(position) + half; }
};

}  // namespace quire
