// kernels/mass.h - how much attention each slot receives from some queries, computed without a
// matrix of attention. Retention methods (kv/retain/) ask for it. Keys are read where they lie, in
// their encoded form.
//
// One lane (layer, KV head) of a sequence consists of a few parts: the pages it kept of compacted
// tokens, the pages of its table, the rows of the open block. Slots are numbered through all parts.
// For one query head, over the slots that the query sees:
//   s[j] = dot(scale * q, k[j])   fma over the dimensions in order, from 0; encoded: encoded.h
//   m = max s,  e[j] = exp(s[j] - m),  l = sum of e as 16 partial sums (slot of its part mod 16) and
//   the tree of kernels/vector.h,  p[j] = e[j] * (1 / l)
// Then, query after query, by the rule:
//   sum    out[j] = fma(p[j], weight, out[j])
//   peak   out[j] = max(out[j], p[j])
//   below  out[j] += weight where p[j] < 1 / (slots the query sees)
// Every instruction set gives the bits of the scalar one. How queries are divided among calls
// changes no bit.
//
//   add_mass(mass_kernels(isa), encoded_kernels(isa), {parts, ...}, MassRule::sum, 1.0f / 64,
//            scratch, out);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/encoded.h"
#include "kernels/kv_view.h"

namespace quire {

enum class MassRule : std::uint8_t { sum, peak, below };

// Slot s lies in pages[s / P], `offset` bytes after its start.
struct KeyPart {
  const ArenaOffset* pages;
  std::size_t offset;
  std::uint32_t begin, end;    // begin is a multiple of 16
  const EncodedPart* encoded;  // null: rows
  RowType rows;
};

// Query i sees slots [0, sinks), [begin, end) and [own, own_end + i), in this order.
struct MassReach {
  std::uint32_t sinks = 0, begin = 0, end = 0, own = 0, own_end = 0;
};

struct MassInput {
  std::byte* arena;
  std::span<const KeyPart> parts;
  std::uint32_t tokens_per_block, head_dim;
  const float* queries;  // [count], `stride` floats apart; rotated
  std::size_t stride;
  std::uint32_t count;
  float scale;
  MassReach reach;
  float softcap = 0;  // of scores, as in attend.h; 0: none
};

// Scratch of one thread; grows to what a call needs.
struct MassScratch {
  std::vector<float> queries, scores, weights;
  std::vector<std::byte> prepared;
};

// A padded row of scores: one part has `count` slots from `at` on, which are `to` ... in the
// out-array.
struct MassRow {
  std::uint32_t at, count, to;
};

struct MassKernels {
  // scores[i * stride + j] of slot part.begin + j, for n queries that are times the scale; whole
  // groups of 16 slots are written.
  void (*scores)(const MassInput& in, const KeyPart& part, const float* queries, std::uint32_t n,
                 float* scores, std::size_t stride);
  // One query. Scores of slots it does not see are -inf; `weights` is scratch as long as the scores.
  void (*fold)(const MassRow* parts, std::uint32_t part_count, const float* scores, float* weights,
               MassRule rule, float weight, std::uint32_t seen, float* out);
  // products[i][j] = fma(row[i], row[j], products[i][j]) and sums[i] += row[i], row after row.
  void (*moments)(const float* rows, std::size_t stride, std::uint32_t count, std::uint32_t dim,
                  float* sums, float* products);
  // out[r] = row^T matrix row, for rows side by side: t[j] = fma over i in order of row[i] *
  // matrix[i][j], from 0; then the sum of t[j] * row[j], fma into 16 sums (j mod 16) and the tree.
  void (*quadratic)(const float* rows, std::uint32_t count, std::uint32_t dim, const float* matrix,
                    float* out);
};
const MassKernels& mass_kernels(Isa isa);

extern const MassKernels kMassScalar, kMassAvx2, kMassAvx512;  // by mass_kernels

void add_mass(const MassKernels& kernels, const EncodedKernels& encoded, const MassInput& in,
              MassRule rule, float weight, MassScratch& scratch, float* out);

}  // namespace quire
