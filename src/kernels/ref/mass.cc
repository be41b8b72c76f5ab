// What the mass of attention is, number by number.
#include "kernels/mass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/math.h"
#include "kernels/ref/row_type.h"

namespace quire {
namespace {

using ref::read;

void scores(const MassInput& in, const KeyPart& part, const float* queries, std::uint32_t n,
            float* out, std::size_t stride) {
  for (std::uint32_t s = part.begin; s < part.end; ++s) {
    const std::byte* page = arena_at(in.arena, part.pages[s / in.tokens_per_block]) + part.offset;
    for (std::uint32_t i = 0; i < n; ++i) {
      float dot = 0;
      for (std::uint32_t d = 0; d < in.head_dim; ++d)
        dot = std::fma(
            queries[std::size_t{i} * in.head_dim + d],
            read(part.rows, page, std::size_t{d} * in.tokens_per_block + s % in.tokens_per_block),
            dot);
      out[i * stride + s - part.begin] = dot;
    }
  }
}

void fold(const MassRow* parts, std::uint32_t part_count, const float* scores, float* weights,
          MassRule rule, float weight, std::uint32_t seen, float* out) {
  float top = -std::numeric_limits<float>::infinity(), sums[16] = {};
  for (const MassRow& part : std::span(parts, part_count))
    for (std::uint32_t j = 0; j < part.count; ++j) top = std::max(top, scores[part.at + j]);
  for (const MassRow& part : std::span(parts, part_count))
    for (std::uint32_t j = 0; j < part.count; ++j)
      sums[j % 16] += weights[part.at + j] = ref::exp(scores[part.at + j] - top);
  const float by = 1 / ref::add_tree(sums), mean = 1 / static_cast<float>(seen);
  for (const MassRow& part : std::span(parts, part_count))
    for (std::uint32_t j = 0; j < part.count; ++j) {
      const float p = weights[part.at + j] * by;
      float& to = out[part.to + j];
      if (rule == MassRule::sum)
        to = std::fma(p, weight, to);
      else if (rule == MassRule::peak)
        to = std::max(to, p);
      else if (p < mean && scores[part.at + j] > -std::numeric_limits<float>::infinity())
        to += weight;
    }
}

void moments(const float* rows, std::size_t stride, std::uint32_t count, std::uint32_t dim,
             float* sums, float* products) {
  for (std::uint32_t r = 0; r < count; ++r) {
    const float* row = rows + r * stride;
    for (std::uint32_t i = 0; i < dim; ++i) {
      sums[i] += row[i];
      for (std::uint32_t j = 0; j < dim; ++j)
        products[std::size_t{i} * dim + j] =
            std::fma(row[i], row[j], products[std::size_t{i} * dim + j]);
    }
  }
}

void quadratic(const float* rows, std::uint32_t count, std::uint32_t dim, const float* matrix,
               float* out) {
  for (std::uint32_t r = 0; r < count; ++r) {
    const float* row = rows + std::size_t{r} * dim;
    float sums[16] = {};
    for (std::uint32_t j = 0; j < dim; ++j) {
      float turned = 0;
      for (std::uint32_t i = 0; i < dim; ++i)
        turned = std::fma(row[i], matrix[std::size_t{i} * dim + j], turned);
      sums[j % 16] = std::fma(turned, row[j], sums[j % 16]);
    }
    out[r] = ref::add_tree(sums);
  }
}

}  // namespace

extern const MassKernels kMassScalar = {scores, fold, moments, quadratic};

}  // namespace quire
