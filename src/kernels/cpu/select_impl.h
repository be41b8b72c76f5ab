// kernels/cpu/select_impl.h - scores of pages; select_avx2.cc and select_avx512.cc are this file.
#pragma once

#include "kernels/cpu/floats.h"
#include "kernels/select.h"

namespace quire {
namespace {

template <class E>
void widen_as(const std::byte* page, std::uint32_t count, float* out) {
  const E* from = reinterpret_cast<const E*>(page);
  for (std::uint32_t i = 0; i < count; i += 16) store(out + i, load(from + i));
}

void select_widen(RowType type, const std::byte* page, std::uint32_t count, float* out) {
  switch (type) {
    case RowType::f32:
      return widen_as<float>(page, count, out);
    case RowType::f16:
      return widen_as<F16>(page, count, out);
    case RowType::bf16:
      return widen_as<Bf16>(page, count, out);
  }
}

void select_bound_scores(const float* bounds, std::uint32_t pages, std::uint32_t dim,
                         const float* queries, std::uint32_t n, float* scores) {
  for (std::uint32_t p = 0; p < pages; ++p) {
    const float *low = bounds + std::size_t{p} * 2 * dim, *high = low + dim;
    float best = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      const float* q = queries + std::size_t{i} * dim;
      Floats sum = zero();
      for (std::uint32_t c = 0; c < dim; c += 16) {
        const Floats x = load(q + c);
        sum = add(sum, max(mul(x, load(low + c)), mul(x, load(high + c))));
      }
      const float whole = add_elements(sum);
      best = i == 0 ? whole : most(best, whole);
    }
    scores[p] = best;
  }
}

// kHeads rows of reversed queries against every 16 keys, which are loaded once for all of them.
template <std::uint32_t kHeads>
void antidiagonals_of(const float* keys, std::uint32_t pages, std::uint32_t tokens,
                      std::uint32_t dim, const float* reversed, float* dots, std::size_t stride) {
  for (std::uint32_t j = 0; j < pages * tokens / 16; ++j) {
    const float* from = keys + std::size_t{j * 16 / tokens} * dim * tokens + j * 16 % tokens;
    Floats sums[kHeads];
    for (Floats& s : sums) s = zero();
    for (std::uint32_t d = 0; d < dim; ++d) {
      const Floats key = load(from + std::size_t{d} * tokens);
      for (std::uint32_t i = 0; i < kHeads; ++i)
        sums[i] = fma(load(reversed + (std::size_t{i} * dim + d) * 16), key, sums[i]);
    }
    for (std::uint32_t i = 0; i < kHeads; ++i) dots[i * stride + j] = add_elements(sums[i]);
  }
}

void select_antidiagonals(const float* keys, std::uint32_t pages, std::uint32_t tokens,
                          std::uint32_t dim, const float* reversed, std::uint32_t n, float* dots,
                          std::size_t stride) {
  std::uint32_t i = 0;
  for (; i + 2 <= n; i += 2)
    antidiagonals_of<2>(keys, pages, tokens, dim, reversed + std::size_t{i} * dim * 16,
                        dots + i * stride, stride);
  for (; i < n; ++i)
    antidiagonals_of<1>(keys, pages, tokens, dim, reversed + std::size_t{i} * dim * 16,
                        dots + i * stride, stride);
}

template <std::uint32_t kHeads>
void products_of(const float* keys, std::uint32_t pages, std::uint32_t tokens, std::uint32_t dim,
                 const float* queries, float* dots, std::size_t stride) {
  for (std::uint32_t slot = 0; slot < pages * tokens; slot += 16) {
    const float* from = keys + std::size_t{slot / tokens} * dim * tokens + slot % tokens;
    Floats sums[kHeads];
    for (Floats& s : sums) s = zero();
    for (std::uint32_t d = 0; d < dim; ++d) {
      const Floats key = load(from + std::size_t{d} * tokens);
      for (std::uint32_t i = 0; i < kHeads; ++i)
        sums[i] = fma(all(queries[std::size_t{i} * dim + d]), key, sums[i]);
    }
    for (std::uint32_t i = 0; i < kHeads; ++i) store(dots + i * stride + slot, sums[i]);
  }
}

void select_products(const float* keys, std::uint32_t pages, std::uint32_t tokens,
                     std::uint32_t dim, const float* queries, std::uint32_t n, float* dots,
                     std::size_t stride) {
  std::uint32_t i = 0;
  for (; i + 4 <= n; i += 4)
    products_of<4>(keys, pages, tokens, dim, queries + std::size_t{i} * dim, dots + i * stride,
                   stride);
  for (; i < n; ++i)
    products_of<1>(keys, pages, tokens, dim, queries + std::size_t{i} * dim, dots + i * stride,
                   stride);
}

}  // namespace
}  // namespace quire
