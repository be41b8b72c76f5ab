// kernels/cpu/mass_impl.h - scores of whole parts and what becomes of them; mass_avx2.cc and
// mass_avx512.cc are this file.
#pragma once

#include "kernels/cpu/attend_tile.h"
#include "kernels/mass.h"

namespace quire {
namespace {

template <class E>
void part_scores(const MassInput& in, const KeyPart& part, const float* queries, std::uint32_t n,
                 float* out, std::size_t stride) {
  const std::uint32_t tokens = in.tokens_per_block;
  for (std::uint32_t first = part.begin; first < part.end; first += kAttendUnit) {
    Unit<E> unit;
    for (std::uint32_t g = 0; g < kGroups; ++g) {  // a group nobody has repeats the last one
      const std::uint32_t slot = least(first + 16 * g, (part.end - 1) / 16 * 16);
      const std::byte* page =
          in.arena + static_cast<std::size_t>(part.pages[slot / tokens]) * kArenaUnit + part.offset;
      unit.keys[g] = reinterpret_cast<const E*>(page) + slot % tokens;
      unit.values[g] = nullptr;
    }
    Prefetch none;
    each_heads(n, [&](auto heads, std::uint32_t i) {
      scores<heads.value>(unit, queries + std::size_t{i} * in.head_dim, in.head_dim, tokens, none,
                          out + i * stride + (first - part.begin), stride);
    });
  }
}

void mass_scores(const MassInput& in, const KeyPart& part, const float* queries, std::uint32_t n,
                 float* out, std::size_t stride) {
  switch (part.rows) {
    case RowType::f32:
      return part_scores<float>(in, part, queries, n, out, stride);
    case RowType::f16:
      return part_scores<F16>(in, part, queries, n, out, stride);
    case RowType::bf16:
      return part_scores<Bf16>(in, part, queries, n, out, stride);
  }
}

// Calls f(place among the scores, place in the out-array, which elements count) for every 16 slots.
template <class F>
QUIRE_INLINE void each_group(const MassRow* parts, std::uint32_t part_count, F f) {
  for (std::uint32_t p = 0; p < part_count; ++p)
    for (std::uint32_t j = 0; j < parts[p].count; j += 16)
      f(parts[p].at + j, parts[p].to + j, least(parts[p].count - j, 16u));
}

void mass_fold(const MassRow* parts, std::uint32_t part_count, const float* scores, float* weights,
               MassRule rule, float weight, std::uint32_t seen, float* out) {
  Floats top = all(kLowest), sum = zero();
  each_group(parts, part_count, [&](std::uint32_t at, std::uint32_t, std::uint32_t) QUIRE_LAMBDA {
    top = max(load(scores + at), top);
  });
  const Floats base = all(largest_of(top));
  each_group(parts, part_count, [&](std::uint32_t at, std::uint32_t, std::uint32_t) QUIRE_LAMBDA {
    const Floats e = exp_bounded(sub(load(scores + at), base));
    store(weights + at, e);
    sum = add(sum, e);
  });
  const float by = 1 / add_elements(sum), mean = 1 / static_cast<float>(seen);
  each_group(parts, part_count,
             [&](std::uint32_t at, std::uint32_t to, std::uint32_t count) QUIRE_LAMBDA {
               const Floats p = mul(load(weights + at), all(by));
               const Floats old = count == 16 ? load(out + to) : load_first(out + to, count);
               Floats made;
               if (rule == MassRule::sum) {
                 made = fma(p, all(weight), old);
               } else if (rule == MassRule::peak) {
                 made = max(p, old);
               } else {
                 const Floats more = choose(less(p, all(mean)), all(weight), zero());
                 made = add(old, choose(less(all(kLowest), load(scores + at)), more, zero()));
               }
               if (count == 16)
                 store(out + to, made);
               else
                 store_first(out + to, made, count);
             });
}

void mass_moments(const float* rows, std::size_t stride, std::uint32_t count, std::uint32_t dim,
                  float* sums, float* products) {
  for (std::uint32_t r = 0; r < count; ++r) {
    const float* row = rows + r * stride;
    for (std::uint32_t i = 0; i < dim; ++i) {
      float* to = products + std::size_t{i} * dim;
      for (std::uint32_t j = 0; j < dim; j += 16) {
        const std::uint32_t n = least(dim - j, 16u);
        store_first(to + j, fma(all(row[i]), load_first(row + j, n), load_first(to + j, n)), n);
      }
      sums[i] += row[i];
    }
  }
}

// kRows rows at a time share what is loaded of the matrix.
template <std::uint32_t kRows>
void quadratic_of(const float* rows, std::uint32_t dim, const float* matrix, float* out) {
  Floats sums[kRows];
  for (Floats& s : sums) s = zero();
  for (std::uint32_t j = 0; j < dim; j += 16) {
    const std::uint32_t n = least(dim - j, 16u);
    Floats turned[kRows];
    for (Floats& t : turned) t = zero();
    for (std::uint32_t i = 0; i < dim; ++i) {
      const float* from = matrix + std::size_t{i} * dim + j;
      const Floats m = n == 16 ? load(from) : load_first(from, n);
      for (std::uint32_t r = 0; r < kRows; ++r)
        turned[r] = fma(all(rows[std::size_t{r} * dim + i]), m, turned[r]);
    }
    for (std::uint32_t r = 0; r < kRows; ++r) {
      const float* row = rows + std::size_t{r} * dim + j;
      sums[r] = fma(turned[r], n == 16 ? load(row) : load_first(row, n), sums[r]);
    }
  }
  for (std::uint32_t r = 0; r < kRows; ++r) out[r] = add_elements(sums[r]);
}

void mass_quadratic(const float* rows, std::uint32_t count, std::uint32_t dim, const float* matrix,
                    float* out) {
  std::uint32_t r = 0;
  for (; r + 6 <= count; r += 6) quadratic_of<6>(rows + std::size_t{r} * dim, dim, matrix, out + r);
  for (; r < count; ++r) quadratic_of<1>(rows + std::size_t{r} * dim, dim, matrix, out + r);
}

}  // namespace
}  // namespace quire
