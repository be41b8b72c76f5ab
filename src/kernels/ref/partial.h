// kernels/ref/partial.h - (max, sum, output) of one query head over some slots, and how two of them
// become one; shared by the references of attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/ref/math.h"
#include "kernels/sealed.h"

namespace quire::ref {

struct Partial {
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  float* out;  // head_dim long

  void clear(std::uint32_t dim) {
    max = -std::numeric_limits<float>::infinity(), sum = 0;
    std::fill_n(out, dim, 0.0f);
  }
  void merge_sum(float other_max, float other_sum, float& keep, float& take) {
    const float most = std::max(max, other_max);
    keep = ref::exp(max - most), take = ref::exp(other_max - most);
    sum = std::fma(other_sum, take, sum * keep);
    max = most;
  }
  void merge(const Partial& o, std::uint32_t dim) {
    float keep, take;
    merge_sum(o.max, o.sum, keep, take);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] = std::fma(o.out[d], take, out[d] * keep);
  }
  // A row's sink, which has no value.
  void add_sink(float sink, std::uint32_t dim) {
    float keep, take;
    merge_sum(sink, 1, keep, take);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] *= keep;
  }
  // As partial `h` of `heads` query heads.
  void leave(float* partial, std::uint32_t h, std::uint32_t heads, std::uint32_t dim) const {
    partial[h] = max;
    partial[heads + h] = sum;
    std::copy_n(out, dim, partial + 2 * heads + h * dim);
  }
};

void attend_sealed(const SealedStep& step, const AttendTask& task, std::byte* scratch);
void merge_sealed(const SealedStep& step, const SealedMerge& merge);

}  // namespace quire::ref
