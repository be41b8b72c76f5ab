// Pages in the GPU's order: nothing is lost on the way there and back, and codes and scales lie where
// the kernels look for them.
#include "kernels/cuda/pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "format/fp8.h"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/sealed.h"

namespace quire {
namespace {

std::vector<float> some_rows(std::uint64_t seed, std::uint32_t dim) {
  Random random(seed);
  std::vector<float> rows(std::size_t{kCudaPage} * dim);
  for (float& x : rows)
    x = bf16_to_f32(f32_to_bf16(static_cast<float>(random.unit() + random.unit() - 1)));
  for (std::uint32_t d = 0; d < dim; ++d) rows[3 * dim + d] = 0;                   // a row of zeros
  for (std::uint32_t d = 0; d < dim; ++d) rows[5 * dim + d] = 0x1p-24f * (d % 3);  // a tiny one
  return rows;
}

// What the kernels read at a place of a sealed page.
float read_sealed(CudaKvFormat format, std::uint32_t dim, const std::byte* page, std::uint32_t side,
                  std::uint32_t slot, std::uint32_t d) {
  std::uint16_t scale;
  std::memcpy(&scale, page + sealed_scale_at(format, dim, side, slot), 2);
  const SealedPlace at = sealed_code_at(format, dim, side, slot, d);
  const std::uint32_t code =
      std::to_integer<std::uint32_t>(page[at.byte]) >> at.shift & ((1u << sealed_bits(format)) - 1);
  if (format == CudaKvFormat::fp8)
    return e4m3_to_f32(static_cast<std::uint8_t>(code)) * f16_to_f32(scale);
  return (static_cast<float>(code) - sealed_centre(format)) * f16_to_f32(scale);
}

TEST(CudaPages, MeanTheSameInBothOrders) {
  std::size_t known = 0;
  for (const Format* format : formats())
    for (const std::uint32_t dim : {64u, 128u, 256u}) {
      const PageShape shape{kCudaPage, dim, dim};
      const auto cuda = cuda_page_format(*format, shape);
      if (!cuda) continue;
      SCOPED_TRACE(std::string(format->name) + ", heads of " + std::to_string(dim));
      ++known;
      const std::size_t bytes = format->key_bytes(shape) + format->value_bytes(shape);
      if (*cuda != CudaKvFormat::bf16) {
        EXPECT_EQ(bytes, sealed_page_bytes(*cuda, dim));
      }
      const std::vector<float> keys = some_rows(1, dim), values = some_rows(2, dim);
      std::vector<std::byte> page(bytes), there(bytes, std::byte{0xa5}),
          back(bytes, std::byte{0x5a});
      format->encode(shape, keys.data(), values.data(), page.data());
      page_to_cuda(*format, shape, page.data(), there.data());
      page_from_cuda(*format, shape, there.data(), back.data());
      EXPECT_EQ(page, back);
      std::vector<float> decoded[2] = {keys, values};
      format->decode(shape, page.data(), decoded[0].data(), decoded[1].data());
      for (std::uint32_t side = 0; side < 2; ++side)
        for (std::uint32_t slot = 0; slot < kCudaPage; ++slot)
          for (std::uint32_t d = 0; d < dim; ++d) {
            float read;
            if (*cuda == CudaKvFormat::bf16) {
              std::uint16_t bits;
              std::memcpy(&bits, there.data() + side * kCudaPage * dim * 2 + page_at(slot, d), 2);
              read = bf16_to_f32(bits);
            } else {
              read = read_sealed(*cuda, dim, there.data(), side, slot, d);
            }
            ASSERT_EQ(read, decoded[side][slot * dim + d]) << side << ' ' << slot << ' ' << d;
          }
    }
  EXPECT_EQ(known, 5u * 3);
}

TEST(CudaPages, OtherFormatsAndShapesHaveNone) {
  const auto find = [](const char* name, PageShape shape) {
    return cuda_page_format(*find_format(name).value(), shape).has_value();
  };
  EXPECT_TRUE(find("int8", {32, 64, 64}));
  EXPECT_FALSE(find("int8", {16, 64, 64}));
  EXPECT_FALSE(find("int8", {32, 80, 80}));
  EXPECT_FALSE(find("int8", {32, 128, 64}));
  EXPECT_FALSE(find("hadamard-int4", {32, 64, 64})) << "groups of 32 are another format";
  EXPECT_FALSE(find("int8/hadamard-int4-head", {32, 64, 64}));
}

}  // namespace
}  // namespace quire
