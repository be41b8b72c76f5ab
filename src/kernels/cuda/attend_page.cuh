// kernels/cuda/attend_page.cuh - attention of up to 16 query rows of a warp to one page.
//
// Decode and prefill call the same functions on the same operands, so a row's bits do not depend on
// which of them computed it. A bf16 page is [D / 64][32][64] keys, then values in the same order: rows
// of 128 bytes whose 16-byte chunks are permuted by chunk ^ (slot & 7), the order of ldmatrix and wgmma.
//
// Rows are those of the accumulator: lane g * 4 + t holds rows g and g + 8; decode uses only g.
#pragma once

#include "kernels/cuda/api.h"
#include "kernels/cuda/ptx.cuh"

namespace quire::cuda {

constexpr float kLowest = -__builtin_huge_valf();

// Weights are 2^(score - m) with some m not far from the row's largest score so far: it moves, and
// what was summed is multiplied anew, only when a score exceeds it by this much.
constexpr float kSlack = 8;

template <int D>
struct Page {
  static constexpr int kBlocks = D / 64, kBlock = kCudaPage * 128;  // of keys, or of values
  static constexpr int kHalf = kCudaPage * D * 2;  // bytes of the keys, or of the values
  static constexpr int kBytes = 2 * kHalf;
  // Byte offset of 8 elements [8 * chunk, 8 * chunk + 8) of a slot.
  __host__ __device__ static constexpr std::uint32_t at(std::uint32_t slot, std::uint32_t chunk) {
    return chunk / 8 * kBlock + slot * 128 + ((chunk % 8 ^ (slot & 7)) << 4);
  }
};

// Of the four lanes that have a row.
__device__ __forceinline__ float sum_of_row(float sum) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}
__device__ __forceinline__ float most_of_row(float most) {
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}

// The state of kRows / 8 rows per lane over one split.
template <int D, int kRows>
struct Softmax {
  static constexpr int kSets = kRows / 8;
  float out[D / 8][2 * kSets];
  float max[kSets], sum[kSets];  // sum: this lane's columns only, until finish()

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kSets; ++j) out[i][j] = 0;
#pragma unroll
    for (int j = 0; j < kSets; ++j) max[j] = kLowest, sum[j] = 0;
  }
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int j = 0; j < kSets; ++j) sum[j] = sum_of_row(sum[j]);
  }
  __device__ __forceinline__ void scale(const float (&by)[kSets]) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kSets; ++j) out[i][j] *= by[j / 2];
  }
};

// Slots that a row sees: [begin, end).
struct Visible {
  std::uint32_t begin, end;
};

// Keys of 64 dimensions; the first block starts the sums.
template <int D>
__device__ __forceinline__ void score_block(const std::uint32_t (&q)[D / 16][4], int block,
                                            std::uint32_t keys, std::uint32_t lane,
                                            float (&s)[4][4]) {
#pragma unroll
  for (int n = 0; block == 0 && n < 4; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      std::uint32_t r[4];
      const std::uint32_t slot = n * 8 + (lane & 7) + ((lane >> 4) << 3);
      load_matrices(r, keys + Page<64>::at(slot, k * 2 + ((lane >> 3) & 1)));
      mma_bf16(s[n], q[block * 4 + k], r[0], r[1]);
      mma_bf16(s[n + 1], q[block * 4 + k], r[2], r[3]);
    }
  }
}

// What rows do not see of some pages is as far from them as can be.
template <int kSets, int kPages>
__device__ __forceinline__ void hide_slots(float (&s)[4 * kPages][4], const Visible (&rows)[kSets],
                                           std::uint32_t first_slot, std::uint32_t lane) {
#pragma unroll
  for (int j = 0; j < kSets; ++j) {
    const Visible v = rows[j];
    if (first_slot >= v.begin && first_slot + kPages * kCudaPage <= v.end) continue;
#pragma unroll
    for (int n = 0; n < 4 * kPages; ++n) {
      const std::uint32_t slot = first_slot + n * 8 + 2 * (lane & 3);
      if (slot < v.begin || slot >= v.end) s[n][2 * j] = kLowest;
      if (slot + 1 < v.begin || slot + 1 >= v.end) s[n][2 * j + 1] = kLowest;
    }
  }
}
// The largest score of a row among pages [from, to), of this lane's columns.
template <int kCount>
__device__ __forceinline__ float most_of(const float (&s)[kCount][4], int j, int from, int to) {
  float most = s[4 * from][2 * j];
#pragma unroll
  for (int n = 4 * from; n < 4 * to; ++n) most = fmaxf(most, fmaxf(s[n][2 * j], s[n][2 * j + 1]));
  return most;
}

// Scores of pages [kFrom, kTo), hidden where they must be, become weights: one page after the other,
// though their arithmetic runs side by side. `decay` is what the outputs so far are to be multiplied
// by before a page's values are added; returns a bit for each page where that is other than 1 for
// this lane's rows.
template <int kFrom, int kTo, int D, int kRows, int kPages>
__device__ __forceinline__ std::uint32_t weigh_seen(float (&s)[4 * kPages][4],
                                                    Softmax<D, kRows>& state,
                                                    float (&decay)[kPages][kRows / 8]) {
  std::uint32_t moved = 0;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    float most[kPages];
#pragma unroll
    for (int p = kFrom; p < kTo; ++p) most[p] = most_of_row(most_of(s, j, p, p + 1));
#pragma unroll
    for (int p = kFrom; p < kTo; ++p) {
      const float before = state.max[j], now = most[p] > before + kSlack ? most[p] : before;
      const float base = now == kLowest ? 0 : now;  // a row that has seen nothing yet
      decay[p][j] = 1;
      if (now != before && before != kLowest) {  // nothing was summed before the first
        decay[p][j] = exp2_approx(before - base);
        moved |= 1u << p;
      }
      float sum = 0;
#pragma unroll
      for (int n = 4 * p; n < 4 * p + 4; ++n) {
        s[n][2 * j] = exp2_approx(s[n][2 * j] - base);
        s[n][2 * j + 1] = exp2_approx(s[n][2 * j + 1] - base);
        sum += s[n][2 * j];
        sum += s[n][2 * j + 1];
      }
      state.sum[j] = __fmaf_rn(state.sum[j], decay[p][j], sum);
      state.max[j] = now;
    }
  }
  return moved;
}
// Weights as the A operand of the product with the values.
template <int kRows, int kPages>
__device__ __forceinline__ void pack_weights(const float (&s)[4 * kPages][4],
                                             std::uint32_t (&weights)[2 * kPages][4]) {
#pragma unroll
  for (int h = 0; h < 2 * kPages; ++h) {
    weights[h][0] = pack_bf16(s[2 * h][0], s[2 * h][1]);
    weights[h][1] = kRows == 16 ? pack_bf16(s[2 * h][2], s[2 * h][3]) : 0;
    weights[h][2] = pack_bf16(s[2 * h + 1][0], s[2 * h + 1][1]);
    weights[h][3] = kRows == 16 ? pack_bf16(s[2 * h + 1][2], s[2 * h + 1][3]) : 0;
  }
}
template <int D, int kRows, int kPages>
__device__ __forceinline__ std::uint32_t weigh_pages(float (&s)[4 * kPages][4],
                                                     const Visible (&rows)[kRows / 8],
                                                     std::uint32_t first_slot, std::uint32_t lane,
                                                     Softmax<D, kRows>& state,
                                                     float (&decay)[kPages][kRows / 8],
                                                     std::uint32_t (&weights)[2 * kPages][4]) {
  hide_slots<kRows / 8, kPages>(s, rows, first_slot, lane);
  const std::uint32_t moved = weigh_seen<0, kPages>(s, state, decay);
  pack_weights<kRows, kPages>(s, weights);
  return moved;
}

// Where no reference of a warp's rows moves, which the first says, weigh_seen does what the second
// does.
template <int kFrom, int kTo, int D, int kCount>
__device__ __forceinline__ bool stays(const float (&s)[kCount][4], const Softmax<D, 16>& state) {
  const float a = most_of(s, 0, kFrom, kTo), b = most_of(s, 1, kFrom, kTo);
  return !__any_sync(~0u, a > state.max[0] + kSlack || b > state.max[1] + kSlack);
}
template <int kFrom, int kTo, int D, int kCount>
__device__ __forceinline__ void weigh_settled(float (&s)[kCount][4], Softmax<D, 16>& state) {
  float base[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) base[j] = state.max[j] == kLowest ? 0 : state.max[j];
#pragma unroll
  for (int p = kFrom; p < kTo; ++p) {
    float sum[2] = {};
#pragma unroll
    for (int n = 4 * p; n < 4 * p + 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2_approx(s[n][i] - base[i / 2]);
        sum[i / 2] = n == 4 * p && i % 2 == 0 ? s[n][i] : sum[i / 2] + s[n][i];
      }
    state.sum[0] += sum[0], state.sum[1] += sum[1];
  }
}
// A split begins: its first page's largest score is the reference.
template <int D, int kCount>
__device__ __forceinline__ void begin_rows(const float (&s)[kCount][4], Softmax<D, 16>& state) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    state.max[j] = most_of_row(most_of(s, j, 0, 1));
    state.sum[j] = 0;
  }
}
// One page; multiplies the outputs if need be.
template <int D>
__device__ __forceinline__ bool weigh_page(float (&s)[4][4], const Visible (&rows)[1],
                                           std::uint32_t first_slot, std::uint32_t lane,
                                           Softmax<D, 8>& state, float& decay,
                                           std::uint32_t (&weights)[2][4]) {
  float by[1][1];
  const bool moved =
      __any_sync(~0u, weigh_pages<D, 8, 1>(s, rows, first_slot, lane, state, by, weights) != 0);
  if (moved) state.scale(by[0]);
  decay = by[0][0];
  return moved;
}

// Values of 64 dimensions. Slots from `written` on hold anything, NaN included: they are not
// multiplied in.
template <int D, int kRows>
__device__ __forceinline__ void add_values_block(const std::uint32_t (&weights)[2][4], int block,
                                                 std::uint32_t values, std::uint32_t lane,
                                                 std::uint32_t written,  // of the page; 32 if all
                                                 Softmax<D, kRows>& state) {
  std::uint32_t keep[2][2];  // by step of 16 slots and half of it
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t slot = h * 16 + i * 8 + 2 * (lane & 3);
      keep[h][i] = (slot < written ? 0xffffu : 0) | (slot + 1 < written ? 0xffff0000u : 0);
    }
  constexpr int kAtOnce = 4;  // chains that run side by side
#pragma unroll
  for (int n = 0; n < 8; n += kAtOnce) {
    float c[kAtOnce][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      c[i][2] = c[i][3] = 0;
#pragma unroll
      for (int j = 0; j < kRows / 4; ++j) c[i][j] = state.out[block * 8 + n + i][j];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      std::uint32_t r[kAtOnce / 2][4];
#pragma unroll
      for (int i = 0; i < kAtOnce / 2; ++i) {
        load_matrices_transposed(
            r[i], values + Page<64>::at(h * 16 + (lane & 15), n + 2 * i + (lane >> 4)));
        if (written < kCudaPage) {
          r[i][0] &= keep[h][0], r[i][1] &= keep[h][1];
          r[i][2] &= keep[h][0], r[i][3] &= keep[h][1];
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        mma_bf16(c[i], weights[h], r[i / 2][i % 2 * 2], r[i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < kRows / 4; ++j) state.out[block * 8 + n + i][j] = c[i][j];
  }
}

// (max, sum, out) of a row takes in those of its next split.
__device__ __forceinline__ void merge_factors(float& max, float& sum, float next_max,
                                              float next_sum, float& mine, float& its) {
  const float most = fmaxf(max, next_max), base = most == kLowest ? 0 : most;
  mine = exp2_approx(max - base);
  its = exp2_approx(next_max - base);
  sum = __fmaf_rn(next_sum, its, sum * mine);
  max = most;
}

// Floats of one partial: max and sum of each of a KV head's rows, then the outputs.
__host__ __device__ constexpr std::size_t partial_floats(std::uint32_t heads, std::uint32_t dim) {
  return std::size_t{heads} * (dim + 2);
}

}  // namespace quire::cuda
