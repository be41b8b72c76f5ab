// polar-rec: the recursive form of PolarQuant. Rows are rotated (H D); each block of 16 is a radius
// and 15 directions, 4 bits at level 1 (evenly spaced) and 2 bits at levels 2 to 4, whose angles
// lie in [0, pi/2] with density sin^(2^(level-1) - 1)(2 angle): fixed codebooks, the centroids of
// that density. 46 bits and an f16 radius per 16 elements: 3.875 bits, no other scale.
//
//   column  0: [P] rows of directions, a bit stream, low bits first: block by block, level by level
//           1: radii [dim / 16][P] f16
#include "format/polar.h"

#include "format/families.h"

namespace quire {
namespace {

constexpr float kCosines1[] = {0.980785280f,  0.831469612f,  0.555570233f,  0.195090322f,
                               -0.195090322f, -0.555570233f, -0.831469612f, -0.980785280f,
                               -0.980785280f, -0.831469612f, -0.555570233f, -0.195090322f,
                               0.195090322f,  0.555570233f,  0.831469612f,  0.980785280f};
constexpr float kSines1[] = {0.195090322f,  0.555570233f,  0.831469612f,  0.980785280f,
                             0.980785280f,  0.831469612f,  0.555570233f,  0.195090322f,
                             -0.195090322f, -0.555570233f, -0.831469612f, -0.980785280f,
                             -0.980785280f, -0.831469612f, -0.555570233f, -0.195090322f};
constexpr float kCosines2[] = {0.952342998f, 0.805632915f, 0.592415063f, 0.305029202f};
constexpr float kSines2[] = {0.305029202f, 0.592415063f, 0.805632915f, 0.952342998f};
constexpr float kCosines3[] = {0.910423464f, 0.781046868f, 0.624472409f, 0.413677552f};
constexpr float kSines3[] = {0.413677552f, 0.624472409f, 0.781046868f, 0.910423464f};
constexpr float kCosines4[] = {0.865650062f, 0.760998969f, 0.648753088f, 0.500649549f};
constexpr float kSines4[] = {0.500649549f, 0.648753088f, 0.760998969f, 0.865650062f};
constexpr PolarDirections kLevels[kPolarLevels] = {{kCosines1, kSines1, 16},
                                                   {kCosines2, kSines2, 4},
                                                   {kCosines3, kSines3, 4},
                                                   {kCosines4, kSines4, 4}};

constexpr std::uint32_t kBlockBits = 8 * 4 + 7 * 2;

std::uint32_t row_bytes(std::uint32_t dim) { return (dim / kPolarBlock * kBlockBits + 7) / 8; }

constexpr std::uint32_t code_bits(std::uint32_t i) { return i < 8 ? 4 : 2; }

CodecLayout layout(const Codec&, Side, Rows rows) {
  return {.columns = {Column{1, row_bytes(rows.dim)}, Column{rows.dim / kPolarBlock, 2}}};
}

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  const std::size_t radii = column_offset(c, side, rows, 1);
  float row[kCodecDimMax];
  std::uint16_t codes[kPolarBlock - 1];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, c.basis(side), row);
    std::byte* stream = page + std::size_t{slot} * row_bytes(rows.dim);
    std::size_t bit = 0;
    for (std::uint32_t b = 0; b < rows.dim / kPolarBlock; ++b) {
      const float radius = polar_encode(kLevels, row + b * kPolarBlock, codes);
      put(page, radii, rows, b, slot, f32_to_f16(std::min(radius, 65504.0f)));
      for (std::uint32_t i = 0; i < kPolarBlock - 1; ++i) {
        put_bits(stream, bit, code_bits(i), codes[i]);
        bit += code_bits(i);
      }
    }
  }
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  const std::size_t radii = column_offset(c, side, rows, 1);
  std::uint16_t codes[kPolarBlock - 1];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    const std::byte* stream = page + std::size_t{slot} * row_bytes(rows.dim);
    std::size_t bit = 0;
    for (std::uint32_t b = 0; b < rows.dim / kPolarBlock; ++b) {
      for (std::uint32_t i = 0; i < kPolarBlock - 1; ++i) {
        codes[i] = take_bits(stream, bit, code_bits(i));
        bit += code_bits(i);
      }
      polar_decode(kLevels, codes, f16_to_f32(take<std::uint16_t>(page, radii, rows, b, slot)),
                   out + std::size_t{slot} * rows.dim + b * kPolarBlock);
    }
  }
}

}  // namespace

extern const Codec kPolarRec = {.name = "polar-rec",
                                .research = true,
                                .key_basis = Basis::signed_hadamard,
                                .value_basis = Basis::signed_hadamard,
                                .dim_power_of_two = true,
                                .layout = layout,
                                .encode = encode,
                                .decode = decode};

}  // namespace quire
