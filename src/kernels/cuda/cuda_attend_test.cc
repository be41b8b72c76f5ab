// Attention on the GPU against softmax in double, and against itself: decoded or read, split or whole
// must give the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/attend_testing.h"

namespace quire {
namespace {

TEST_F(CudaAttend, DecodeAndPrefillAgreeWithDoubleAndWithEachOther) {
  const AttendCase cases[] = {
      {2, 4, 128, 0, {1500, 40, 512, 513}, 7, 0.2f},
      {3, 3, 64, 0, {700, 33, 2049}, 30, 0.3f},
      {1, 8, 128, 0, {90}, 90, 0.2f},
      {2, 1, 64, 100, {1300, 150}, 140, 0.3f},
      {8, 4, 128, 600, {1700}, 50, 0.2f},
      {1, 4, 128, 0, {18000}, 40, 1.0f},
  };
  for (const AttendCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c.kv_heads << "x" << c.heads_per_kv << "x" << c.dim
                                    << ", window " << c.window << ", " << c.lengths[0]);
    build(c);
    const Bits decoded = attend(1, 1);
    EXPECT_LT(worst(decoded), 0.02);
    EXPECT_EQ(decoded, attend(1, 0)) << "whole rows";
    const std::uint32_t tile = kCudaTile / c.heads_per_kv;
    EXPECT_EQ(decoded, attend(tile, 0)) << "whole tiles";
    EXPECT_EQ(decoded, attend(tile, 1)) << "tiles in splits";
    EXPECT_EQ(decoded, attend(tile, 2)) << "tiles in pairs of splits";
    EXPECT_EQ(decoded, attend(std::min(tile, 5u), 0)) << "small tiles";
    const std::uint32_t few = kCudaFewPairs / c.heads_per_kv;
    EXPECT_EQ(decoded, attend(few, 1)) << "few pairs in splits";
    EXPECT_EQ(decoded, attend(few, 50)) << "few pairs in one item";
  }
}

TEST_F(CudaAttend, DecodesWideHeads) {
  build({1, 4, 256, 512, {1200, 31}, 9, 0.15f});
  EXPECT_LT(worst(attend(1, 1)), 0.02);
}

TEST_F(CudaAttend, RopeStoreRotatesScalesAndWritesWhereAttentionReads) {
  for (const std::uint32_t dim : {64u, 128u, 256u}) {
    constexpr std::uint32_t kRows = 5, kQuery = 6, kKv = 2;
    const std::uint32_t heads = kQuery + 2 * kKv;
    const std::size_t half = kCudaPage * dim * 2, block = kKv * 2 * half;
    const Bits qkv = noise(1, std::size_t{kRows} * heads * dim);
    const std::vector<float> angles = floats(2, 40 * dim, -1, 1),
                             bias = floats(3, heads * dim, -1, 1), norm = floats(4, dim, 0.5f, 2);
    const std::vector<std::uint32_t> positions{0, 31, 32, 7, 39},
        places{0, 0, static_cast<std::uint32_t>(block / 256), 0xffffffffu,
               static_cast<std::uint32_t>(block / 256)};
    auto* arena = static_cast<std::byte*>(room(2 * block, 0));
    void* queries = room(std::size_t{kRows} * kQuery * dim * 2);
    ok(api_->rope_store(
        {up(qkv), up(bias), up(norm), nullptr, up(angles), up(positions), up(places), queries,
         arena, kRows, kQuery, kKv, dim, dim, 0.25f, 1e-5f, 0, 2 * half},
        stream_));
    // Rows with a key or a value that is not finite are told, and no others.
    Bits broken = qkv;
    broken[(1 * heads + kQuery) * dim + 3] = 0x7fc0;              // a key of row 1: NaN
    broken[(4 * heads + kQuery + kKv) * dim + dim - 1] = 0xff80;  // a value of row 4: -infinity
    broken[(2 * heads + 1) * dim] = 0x7fc0;  // a query of row 2: stored nowhere
    auto* flags = static_cast<std::uint32_t*>(room(kRows * 4, 0));
    RopeStoreArgs again{up(broken), nullptr,    nullptr,
                        nullptr,    up(angles), up(positions),
                        up(places), queries,    static_cast<std::byte*>(room(2 * block, 0)),
                        kRows,      kQuery,     kKv,
                        dim,        dim,        0.25f,
                        1e-5f,      0,          2 * half};
    again.broken = flags;
    again.queries = room(std::size_t{kRows} * kQuery * dim * 2);
    ok(api_->rope_store(again, stream_));
    EXPECT_EQ(down<std::uint32_t>(flags, kRows), (std::vector<std::uint32_t>{0, 1, 0, 0, 1}));
    const Bits q = down<std::uint16_t>(queries, std::size_t{kRows} * kQuery * dim);
    const auto bytes = down<std::byte>(arena, 2 * block);
    std::size_t written = 0;
    for (const std::byte b : bytes) written += b != std::byte{0};
    EXPECT_LE(written, 4u * kKv * 2 * dim * 2) << "the row without a place was written";
    for (std::uint32_t r = 0; r < kRows; ++r)
      for (std::uint32_t h = 0; h < heads; ++h) {
        std::vector<double> x(dim);
        double squares = 0;
        for (std::uint32_t d = 0; d < dim; ++d) {
          x[d] = bf16_to_f32(qkv[(std::size_t{r} * heads + h) * dim + d]) + bias[h * dim + d];
          squares += x[d] * x[d];
        }
        if (h < kQuery)
          for (std::uint32_t d = 0; d < dim; ++d) x[d] *= norm[d] / std::sqrt(squares / dim + 1e-5);
        const bool is_value = h >= kQuery + kKv;
        for (std::uint32_t d = 0; d < dim; ++d) {
          const std::uint32_t i = d % (dim / 2);
          const double c = angles[positions[r] * dim + i],
                       s = angles[positions[r] * dim + dim / 2 + i];
          const double want = is_value      ? x[d]
                              : d < dim / 2 ? x[i] * c - x[i + dim / 2] * s
                                            : x[i + dim / 2] * c + x[i] * s;
          if (h < kQuery) {
            ASSERT_NEAR(bf16_to_f32(q[(std::size_t{r} * kQuery + h) * dim + d]), want * 0.25,
                        0.004 * std::fabs(want) + 1e-4);
          } else if (places[r] != 0xffffffffu) {
            std::uint16_t got;
            std::memcpy(&got,
                        &bytes[std::size_t{places[r]} * 256 + (h - kQuery) % kKv * 2 * half +
                               (is_value ? half : 0) + page_at(positions[r] % kCudaPage, d)],
                        2);
            ASSERT_NEAR(bf16_to_f32(got), want, 0.005 * std::fabs(want) + 1e-4);
          }
        }
      }
  }
}

}  // namespace
}  // namespace quire
