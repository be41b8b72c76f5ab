// Latent attention on the GPU against softmax in double; what a row gets must not depend on the others.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/device_testing.h"

namespace quire {
namespace {

class CudaLatent : public Cuda {
 protected:
  static constexpr std::size_t kPage = kCudaPage * kLatentKeys * 2, kBlock = 2 * kPage;  // 2 layers

  // The last token of each sequence asks. All of them, or those from `first` on.
  Bits attend(std::uint32_t heads, std::size_t first = 0) {
    std::vector<std::uint32_t> tables;
    CudaPlan plan;
    Bits q;
    for (std::size_t s = first; s < lengths_.size(); ++s) {
      add_attention(plan,
                    {.table = static_cast<std::uint32_t>(tables.size()),
                     .row = static_cast<std::uint32_t>(s - first),
                     .position = lengths_[s] - 1,
                     .past = lengths_[s] - 1,
                     .begin = 0,
                     .end = lengths_[s],
                     .partial = kNoPartial,
                     .row_count = 1,
                     .partial_stride = 0},
                    cuda_split(kLatentValues), 1);
      tables.insert(tables.end(), tables_[s].begin(), tables_[s].end());
      q.insert(q.end(), queries_[s].begin(), queries_[s].end());
    }
    AttendArgs a{};
    a.arena = arena_;
    a.tables = up(tables);
    a.queries = up(q);
    a.query_heads = heads;
    a.kv_heads = heads / kLatentHeads;
    a.head_dim = kLatentValues;
    a.layer_offset = kPage;
    use(plan, a);
    a.items_max += 2;
    a.output = room(activation_elements(a.rows, heads * kLatentValues) * 2);
    ok(api_->attend_latent(a, stream_));
    ok(api_->attend_merge(a, stream_));
    const std::uint32_t width = heads * kLatentValues;
    const Bits packed = down<std::uint16_t>(a.output, activation_elements(a.rows, width));
    Bits out(std::size_t{a.rows} * width);
    for (std::uint32_t r = 0; r < a.rows; ++r)
      for (std::uint32_t k = 0; k < width; ++k)
        out[std::size_t{r} * width + k] = packed[activation_at(a.rows, width, r, k)];
    return out;
  }

  void build(std::uint32_t heads, std::vector<std::uint32_t> lengths) {
    lengths_ = std::move(lengths);
    tables_.clear(), rows_.clear(), queries_.clear();
    std::uint32_t blocks = 0;
    for (const std::uint32_t n : lengths_) blocks += (n + kCudaPage - 1) / kCudaPage;
    std::vector<std::byte> arena(blocks * kBlock, std::byte{0xff});  // NaN
    std::uint32_t next = blocks;
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
      rows_.push_back(noise(10 + s, std::size_t{lengths_[s]} * kLatentKeys, 0.3f));
      queries_.push_back(noise(40 + s, std::size_t{heads} * kLatentKeys, 0.3f));
      tables_.emplace_back();
      for (std::uint32_t i = 0; i < lengths_[s]; ++i) {
        if (i % kCudaPage == 0)
          tables_[s].push_back(static_cast<std::uint32_t>(--next * kBlock / 256));
        std::byte* page = arena.data() + std::size_t{tables_[s].back()} * 256 + kPage;
        for (std::uint32_t d = 0; d < kLatentKeys; ++d)
          std::memcpy(page + page_at(i % kCudaPage, d), &rows_[s][std::size_t{i} * kLatentKeys + d],
                      2);
      }
    }
    arena_ = up(arena);
  }

  std::vector<std::uint32_t> lengths_;
  std::vector<std::vector<std::uint32_t>> tables_;
  std::vector<Bits> rows_, queries_;
  std::byte* arena_ = nullptr;
};

TEST_F(CudaLatent, AgreesWithDoubleAndDoesNotDependOnCompany) {
  for (const std::uint32_t heads : {16u, 48u, 128u}) {
    build(heads, {1, 31, 32, 700, 1537});
    const Bits got = attend(heads);
    double worst = 0;
    for (std::size_t s = 0; s < lengths_.size(); ++s)
      for (std::uint32_t h = 0; h < heads; h += 5) {
        std::vector<double> scores(lengths_[s]), out(kLatentValues);
        double most = -1e300, sum = 0;
        for (std::uint32_t i = 0; i < lengths_[s]; ++i) {
          for (std::uint32_t d = 0; d < kLatentKeys; ++d)
            scores[i] += double{bf16_to_f32(queries_[s][std::size_t{h} * kLatentKeys + d])} *
                         bf16_to_f32(rows_[s][std::size_t{i} * kLatentKeys + d]);
          most = std::max(most, scores[i]);
        }
        for (std::uint32_t i = 0; i < lengths_[s]; ++i) {
          const double p = std::exp2(scores[i] - most);
          sum += p;
          for (std::uint32_t d = 0; d < kLatentValues; ++d)
            out[d] += p * bf16_to_f32(rows_[s][std::size_t{i} * kLatentKeys + d]);
        }
        for (std::uint32_t d = 0; d < kLatentValues; ++d) {
          const double error =
              std::fabs(bf16_to_f32(got[(s * heads + h) * kLatentValues + d]) - out[d] / sum);
          worst = std::isnan(error) ? 1e9 : std::max(worst, error);
        }
      }
    EXPECT_LT(worst, 0.01) << heads;
    const Bits alone = attend(heads, 3);  // in a smaller batch
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                           got.begin() + std::ptrdiff_t{3} * heads * kLatentValues))
        << heads;
  }
}

}  // namespace
}  // namespace quire
