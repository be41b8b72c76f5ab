// qjl: keys as the signs of 2 * dim random projections and a norm; values asymmetric, 2 bits in
// groups of 32. The estimate sqrt(pi / 2) / m * |k| * <S q, sign(S k)> of q . k is unbiased over S
// (not for one S) and is linear in q: decoding gives the vector whose product with q is the
// estimate. There is no separate sketch of outlier channels: it would make slots depend on each
// other.
//
//   keys    column 0: [P] rows of signs, bit i of the row is set where (S k)[i] is negative
//           column 1: norms [P] f16
//   values  planes of 2 bits; steps, then least, [groups][P] f16
#include "format/qjl.h"

#include "format/families.h"

namespace quire {
namespace {

constexpr std::uint32_t kRounds = 3, kBlocks = 2;

std::uint64_t round_seed(std::uint64_t seed, std::uint32_t block, std::uint32_t round) {
  return seed * 1009 + (block * kRounds + round) * 64;  // streams of flip_signs do not overlap
}

CodecLayout layout(const Codec& c, Side side, Rows rows) {
  if (side == Side::values) return asymmetric_layout(c, side, rows);
  return {.columns = {Column{1, kBlocks * rows.dim / 8}, Column{1, 2}}};
}

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  if (side == Side::values) return encode_asymmetric(c, side, rows, in, page);
  const std::size_t norms = column_offset(c, side, rows, 1);
  const std::uint32_t bits = kBlocks * rows.dim;
  float row[kCodecDimMax], projected[kBlocks * kCodecDimMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, Basis::plain, row);
    const float norm = std::sqrt(sum_squares(row, rows.dim));
    put(page, norms, rows, 0, slot, f32_to_f16(std::min(norm, 65504.0f)));
    qjl_project(kQjlSeed, rows.dim, row, projected);
    std::byte* signs = page + std::size_t{slot} * bits / 8;
    std::memset(signs, 0, bits / 8);
    for (std::uint32_t i = 0; i < bits; ++i)
      if (projected[i] < 0) signs[i / 8] |= std::byte(1u << i % 8);
  }
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  if (side == Side::values) return decode_asymmetric(c, side, rows, page, out);
  const std::size_t norms = column_offset(c, side, rows, 1);
  const std::uint32_t bits = kBlocks * rows.dim;
  float signs[kBlocks * kCodecDimMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    const std::byte* stored = page + std::size_t{slot} * bits / 8;
    for (std::uint32_t i = 0; i < bits; ++i)
      signs[i] = std::to_integer<std::uint32_t>(stored[i / 8]) >> i % 8 & 1 ? -1.0f : 1.0f;
    qjl_estimate(kQjlSeed, rows.dim, f16_to_f32(take<std::uint16_t>(page, norms, rows, 0, slot)),
                 signs, out + std::size_t{slot} * rows.dim);
  }
}

}  // namespace

void qjl_project(std::uint64_t seed, std::uint32_t dim, const float* x, float* out) {
  for (std::uint32_t block = 0; block < kBlocks; ++block, out += dim) {
    std::memcpy(out, x, dim * sizeof(float));
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      flip_signs(round_seed(seed, block, round), dim, out);
      to_basis(Basis::hadamard, dim, out);
    }
    for (std::uint32_t d = 0; d < dim; ++d) out[d] *= std::sqrt(static_cast<float>(dim));
  }
}

void qjl_estimate(std::uint64_t seed, std::uint32_t dim, float norm, const float* signs, float* x) {
  const auto n = static_cast<float>(dim);
  // Directions of fixed length have a slightly larger mean magnitude than Gaussian ones.
  const float factor = 1.2533141f / (1 + 1 / (4 * n)) / (kBlocks * n) * std::sqrt(n) * norm;
  float back[kCodecDimMax];
  std::fill_n(x, dim, 0.0f);
  for (std::uint32_t block = 0; block < kBlocks; ++block, signs += dim) {
    std::memcpy(back, signs, dim * sizeof(float));
    for (std::uint32_t round = kRounds; round-- > 0;) {
      from_basis(Basis::hadamard, dim, back);
      flip_signs(round_seed(seed, block, round), dim, back);
    }
    for (std::uint32_t d = 0; d < dim; ++d) x[d] += back[d];
  }
  for (std::uint32_t d = 0; d < dim; ++d) x[d] *= factor;
}

extern const Codec kQjl = {.name = "qjl",
                           .research = true,
                           .bits = 2,
                           .group = 32,
                           .dim_power_of_two = true,
                           .layout = layout,
                           .encode = encode,
                           .decode = decode};

}  // namespace quire
