// Attention over sealed pages: they are sealed on the device and read back with the CPU's codec, or
// encoded here and read on the device. Bytes must agree, attention with softmax over what each row reads, and how a row is cut must
// change no bit.
#include <bit>

#include "kernels/cuda/sealed_testing.h"

namespace quire {
namespace {

TEST_F(CudaSealed, DecodesEveryFormat) {
  const AttendCase cases[] = {{2, 4, 128, 0, {1504, 70, 512, 20, 1025}, 3, 0.2f},
                              {3, 3, 64, 300, {704, 2048, 33}, 5, 0.3f},
                              {1, 8, 128, 0, {200}, 150, 0.2f}};
  for (const CudaKvFormat format :
       {CudaKvFormat::fp8, CudaKvFormat::int8, CudaKvFormat::int4, CudaKvFormat::int2})
    for (const AttendCase& c : cases)
      for (const Keeps keeps : {Keeps{0, 0}, Keeps{1, 0}, Keeps{3, 2}}) {
        SCOPED_TRACE(testing::Message()
                     << static_cast<int>(format) << ", heads of " << c.dim << ", " << keeps.recent
                     << " recent and " << keeps.sinks << " sinks");
        build(c);
        seal(format, keeps);
        const Bits whole = attend_sealed(false);
        EXPECT_LT(worst(whole), 0.02);
        EXPECT_EQ(whole, attend_sealed(true)) << "in splits";
        const std::uint32_t together = c.window ? 1 : kSealedColumns / c.heads_per_kv;
        EXPECT_EQ(whole, attend_sealed(false, together)) << together << " together";
        EXPECT_EQ(whole, attend_sealed(true, together)) << together << " together, in splits";
        encode_here();  // what a CPU encoded, a GPU reads
        const Bits moved = attend_sealed(false);
        EXPECT_LT(worst(moved), 0.02);
        if (!cuda_rotates(format)) {
          EXPECT_EQ(whole, moved);
        }
      }
}

// Everything in the Hadamard basis, outputs too: rotating them must lead back, by either way.
TEST_F(CudaSealed, OutputsLeaveTheHadamardBasis) {
  for (const std::uint32_t dim : {64u, 128u}) {
    build({2, 2, dim, 0, {900, 45}, 2, 0.2f});
    seal(CudaKvFormat::int4, {1, 0});
    const Bits inside = attend_sealed(false);
    rotated_ = true;
    const Bits outside = attend_sealed(false);
    EXPECT_EQ(outside, attend_sealed(true)) << "merged";
    rotated_ = false;
    for (std::size_t head = 0; head < inside.size() / dim; ++head)
      for (std::uint32_t d = 0; d < dim; ++d) {
        double x = 0;
        for (std::uint32_t e = 0; e < dim; ++e)
          x += (std::popcount(d & e) % 2 ? -1 : 1) * double{bf16_to_f32(inside[head * dim + e])};
        ASSERT_NEAR(bf16_to_f32(outside[head * dim + d]), x / std::sqrt(dim), 0.02);
      }
  }
}

}  // namespace
}  // namespace quire
