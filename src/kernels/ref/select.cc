// What scores of pages are, number by number.
#include "kernels/select.h"

#include <algorithm>
#include <cmath>

#include "kernels/ref/math.h"
#include "kernels/ref/row_type.h"

namespace quire {
namespace {

void widen(RowType type, const std::byte* page, std::uint32_t count, float* out) {
  for (std::uint32_t i = 0; i < count; ++i) out[i] = ref::read(type, page, i);
}

void bound_scores(const float* bounds, std::uint32_t pages, std::uint32_t dim, const float* queries,
                  std::uint32_t n, float* scores) {
  for (std::uint32_t p = 0; p < pages; ++p) {
    const float *low = bounds + std::size_t{p} * 2 * dim, *high = low + dim;
    for (std::uint32_t i = 0; i < n; ++i) {
      const float* q = queries + std::size_t{i} * dim;
      float sums[16] = {};
      for (std::uint32_t c = 0; c < dim; ++c)
        sums[c % 16] += std::max(q[c] * low[c], q[c] * high[c]);
      const float sum = ref::add_tree(sums);
      scores[p] = i == 0 ? sum : std::max(scores[p], sum);
    }
  }
}

void antidiagonals(const float* keys, std::uint32_t pages, std::uint32_t tokens, std::uint32_t dim,
                   const float* reversed, std::uint32_t n, float* dots, std::size_t stride) {
  for (std::uint32_t j = 0; j < pages * tokens / 16; ++j) {
    const float* from = keys + std::size_t{j * 16 / tokens} * dim * tokens + j * 16 % tokens;
    for (std::uint32_t i = 0; i < n; ++i) {
      float sums[16] = {};
      for (std::uint32_t d = 0; d < dim; ++d)
        for (std::uint32_t r = 0; r < 16; ++r)
          sums[r] = std::fma(reversed[(std::size_t{i} * dim + d) * 16 + r],
                             from[std::size_t{d} * tokens + r], sums[r]);
      dots[i * stride + j] = ref::add_tree(sums);
    }
  }
}

void products(const float* keys, std::uint32_t pages, std::uint32_t tokens, std::uint32_t dim,
              const float* queries, std::uint32_t n, float* dots, std::size_t stride) {
  for (std::uint32_t slot = 0; slot < pages * tokens; ++slot) {
    const float* from = keys + std::size_t{slot / tokens} * dim * tokens + slot % tokens;
    for (std::uint32_t i = 0; i < n; ++i) {
      float dot = 0;
      for (std::uint32_t d = 0; d < dim; ++d)
        dot = std::fma(queries[std::size_t{i} * dim + d], from[std::size_t{d} * tokens], dot);
      dots[i * stride + slot] = dot;
    }
  }
}

}  // namespace

extern const SelectKernels kSelectScalar = {widen, bound_scores, antidiagonals, products};

}  // namespace quire
