// Attention on the GPU against softmax in double, and against itself: decoded or read, split or whole
// must give the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/cuda/device_testing.h"
#include "kernels/cuda/sealed.h"

namespace quire {
namespace {

// A cache with a few sequences, and attention over it in any number of steps.
struct AttendCase {
  std::uint32_t kv_heads, heads_per_kv, dim, window;
  std::vector<std::uint32_t> lengths;
  std::uint32_t queries;  // the last so many tokens of each ask
  float spread;
};

class CudaAttend : public Cuda {
 protected:
  static constexpr std::uint32_t kLayer = 1, kLayers = 2;

  void build(const AttendCase& c) {
    case_ = c;
    heads_ = c.kv_heads * c.heads_per_kv;
    half_ = kCudaPage * c.dim * 2;
    block_ = std::size_t{kLayers} * c.kv_heads * 2 * half_;
    tables_.clear();
    first_.clear();
    keys_.clear(), values_.clear(), queries_.clear();
    std::vector<std::uint32_t> order;
    for (std::size_t s = 0; s < c.lengths.size(); ++s) {
      first_.push_back(static_cast<std::uint32_t>(order.size()));
      for (std::uint32_t b = 0; b * kCudaPage < c.lengths[s]; ++b)
        order.push_back(static_cast<std::uint32_t>(order.size()));
    }
    Random random(5);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    std::vector<std::byte> arena(order.size() * block_, std::byte{0xff});  // NaN
    for (const std::uint32_t at : order)
      tables_.push_back(static_cast<std::uint32_t>(at * block_ / 256));
    for (std::size_t s = 0; s < c.lengths.size(); ++s) {
      keys_.push_back(noise(10 + s, std::size_t{c.lengths[s]} * c.kv_heads * c.dim, c.spread));
      values_.push_back(noise(20 + s, std::size_t{c.lengths[s]} * c.kv_heads * c.dim));
      queries_.push_back(noise(30 + s, std::size_t{c.queries} * heads_ * c.dim, c.spread * 0.2f));
      for (std::uint32_t t = 0; t < c.lengths[s]; ++t)
        for (std::uint32_t h = 0; h < c.kv_heads; ++h) {
          std::byte* page = arena.data() + std::size_t{tables_[first_[s] + t / kCudaPage]} * 256 +
                            (kLayer * c.kv_heads + h) * 2 * half_;
          for (std::uint32_t d = 0; d < c.dim; ++d) {
            const std::size_t from = (std::size_t{t} * c.kv_heads + h) * c.dim + d;
            const std::uint32_t to = page_at(c.dim, t % kCudaPage, d);
            std::memcpy(page + to, &keys_[s][from], 2);
            std::memcpy(page + half_ + to, &values_[s][from], 2);
          }
        }
    }
    arena_ = up(arena);
    device_tables_ = up(tables_);
  }

  // All queries of all sequences in one step; in items of `rows` rows and, if `splits` is not 0, of
  // at most so many splits.
  Bits attend(std::uint32_t rows, std::uint32_t splits) {
    std::vector<AttendItem> items;
    std::vector<AttendMerge> merges;
    Bits q;
    std::uint32_t partials = 0, row = 0;
    for (std::size_t s = 0; s < case_.lengths.size(); ++s) {
      q.insert(q.end(), queries_[s].begin(), queries_[s].end());
      for (std::uint32_t i = 0; i < case_.queries; i += rows) {
        const std::uint32_t count = std::min(rows, case_.queries - i);
        const std::uint32_t position = case_.lengths[s] - case_.queries + i, end = position + count;
        const std::uint32_t split_slots = cuda_split(case_.dim);
        const std::uint32_t window_begin =
            case_.window ? position + 1 - std::min(position + 1, case_.window) : 0;
        const std::uint32_t from = window_begin / split_slots, to = (end - 1) / split_slots + 1;
        const auto begin_of = [&](std::uint32_t split) {
          return std::max(split * split_slots, window_begin);
        };
        const bool cut = splits != 0 && to - from > 1;
        AttendItem item{.table = first_[s],
                        .row = row,
                        .position = position,
                        .past = position,
                        .begin = begin_of(from),
                        .end = end,
                        .partial = kNoPartial,
                        .row_count = static_cast<std::uint16_t>(count),
                        .partial_stride = static_cast<std::uint16_t>(to - from)};
        for (std::uint32_t split = from; cut && split < to; split += splits) {
          item.begin = begin_of(split);
          item.end = std::min(end, (split + splits) * split_slots);
          item.partial = partials + split - from;
          items.push_back(item);
        }
        if (!cut) items.push_back(item);
        for (std::uint32_t r = 0; r < count; ++r) {
          merges.push_back({row + r, partials, cut ? to - from : 0});
          if (cut) partials += to - from;
        }
        row += count;
      }
    }
    void* out = room(activation_elements(row, heads_ * case_.dim) * 2);
    AttendArgs a{};
    a.arena = arena_;
    a.tables = device_tables_;
    a.items = up(items);
    a.item_count = up(std::vector<std::uint32_t>{static_cast<std::uint32_t>(items.size())});
    a.merges = up(merges);
    a.queries = up(q);
    a.output = out;
    a.partials = static_cast<float*>(
        room((partials + 1ull) * case_.kv_heads * case_.heads_per_kv * (case_.dim + 2) * 4));
    a.rows = row;
    a.query_heads = heads_, a.kv_heads = case_.kv_heads, a.head_dim = case_.dim;
    a.window = case_.window;
    a.items_max = static_cast<std::uint32_t>(items.size());
    a.layer_offset = std::uint64_t{kLayer} * case_.kv_heads * 2 * half_;
    a.page_bytes = 2 * half_;
    if (format_ != CudaKvFormat::bf16) {  // pages one after the other, as sealed
      a.format = format_;
      a.arena = sealed_;
      a.page_bytes = sealed_stride_;
      a.layer_offset = std::uint64_t{kLayer} * case_.kv_heads * sealed_stride_;
      std::vector<std::uint32_t> tables;
      for (const std::uint32_t t : tables_)
        tables.push_back(static_cast<std::uint32_t>(std::size_t{t} * 256 / block_ * kLayers *
                                                    case_.kv_heads * sealed_stride_ / 256));
      a.tables = up(tables);
    }
    ok(rows == 1 ? api_->attend_decode(a, stream_) : api_->attend_prefill(a, stream_));
    ok(api_->attend_merge(a, stream_));
    const std::uint32_t width = heads_ * case_.dim;
    const Bits packed = down<std::uint16_t>(out, activation_elements(row, width));
    Bits result(std::size_t{row} * width);
    for (std::uint32_t r = 0; r < row; ++r)
      for (std::uint32_t k = 0; k < width; ++k)
        result[std::size_t{r} * width + k] = packed[activation_at(row, width, r, k)];
    return result;
  }

  // The largest error against softmax in double.
  double worst(const Bits& got) {
    double most = 0;
    std::size_t row = 0;
    for (std::size_t s = 0; s < case_.lengths.size(); ++s)
      for (std::uint32_t i = 0; i < case_.queries; ++i, ++row)
        for (std::uint32_t h = 0; h < heads_; ++h) {
          const std::uint32_t end = case_.lengths[s] - case_.queries + i + 1, dim = case_.dim;
          const std::uint32_t begin = case_.window ? end - std::min(end, case_.window) : 0;
          std::vector<double> out(dim);
          double sum = 0;
          for (std::uint32_t t = begin; t < end; ++t) {
            const std::size_t at = (std::size_t{t} * case_.kv_heads + h / case_.heads_per_kv) * dim;
            double dot = 0;
            for (std::uint32_t d = 0; d < dim; ++d)
              dot += double{bf16_to_f32(queries_[s][(std::size_t{i} * heads_ + h) * dim + d])} *
                     stored(0, s, at + d);
            const double p = std::exp2(dot);
            sum += p;
            for (std::uint32_t d = 0; d < dim; ++d) out[d] += p * stored(1, s, at + d);
          }
          for (std::uint32_t d = 0; d < dim; ++d) {
            const double error =
                std::fabs(bf16_to_f32(got[(row * heads_ + h) * dim + d]) - out[d] / sum);
            if (!(error <= most)) most = std::isnan(error) ? 1e9 : error;
          }
        }
    return most;
  }

  double stored(std::uint32_t side, std::size_t s, std::size_t i) const {
    if (format_ != CudaKvFormat::bf16) return decoded_[side].at(s)[i];
    return bf16_to_f32((side ? values_ : keys_)[s][i]);
  }

  AttendCase case_;
  CudaKvFormat format_ = CudaKvFormat::bf16;
  const std::byte* sealed_ = nullptr;
  std::size_t sealed_stride_ = 0;
  std::map<std::size_t, std::vector<double>> decoded_[2];
  std::uint32_t heads_ = 0;
  std::size_t half_ = 0, block_ = 0;
  std::vector<std::uint32_t> tables_, first_;
  std::vector<Bits> keys_, values_, queries_;
  const std::byte* arena_ = nullptr;
  const std::uint32_t* device_tables_ = nullptr;
};

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
  }
}

// Pages are sealed on the device, read back and decoded here: attention must agree with softmax
// over the decoded numbers, and they with the rows.
TEST_F(CudaAttend, DecodesSealedPagesOfEveryFormat) {
  const auto e4m3 = [](std::uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double size =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return code & 128 ? -size : size;
  };
  for (const CudaKvFormat format : {CudaKvFormat::fp8, CudaKvFormat::int8, CudaKvFormat::int4})
    for (const AttendCase& c : {AttendCase{2, 4, 128, 0, {1504, 64, 512}, 1, 0.2f},
                                AttendCase{3, 3, 64, 300, {704, 2048}, 1, 0.3f}}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(format) << ", heads of " << c.dim);
      build(c);
      const std::uint32_t pages = static_cast<std::uint32_t>(tables_.size()) * kLayers * c.kv_heads;
      const std::size_t sealed = sealed_page_bytes(format, c.dim);
      const std::size_t stride = (sealed + 255) / 256 * 256;
      auto* to = static_cast<std::byte*>(room(pages * stride));
      ok(api_->seal({arena_, to, pages, c.dim, 2 * half_, stride, format}, stream_));
      const auto bytes = down<std::byte>(to, pages * stride);
      for (std::size_t s = 0; s < c.lengths.size(); ++s)
        for (std::uint32_t t = 0; t < c.lengths[s]; ++t)
          for (std::uint32_t h = 0; h < c.kv_heads; ++h)
            for (std::uint32_t side = 0; side < 2; ++side) {
              const std::byte* page =
                  bytes.data() + (tables_[first_[s] + t / kCudaPage] * std::size_t{256} / block_ *
                                      kLayers * c.kv_heads +
                                  kLayer * c.kv_heads + h) *
                                     stride;
              float scale;
              std::memcpy(&scale, page + sealed_scale_at(format, c.dim, side, t % kCudaPage), 4);
              Bits& rows = side ? values_[s] : keys_[s];
              for (std::uint32_t d = 0; d < c.dim; ++d) {
                const SealedPlace at = sealed_code_at(format, c.dim, side, t % kCudaPage, d);
                const auto code = static_cast<std::uint8_t>(page[at.byte]);
                const double x =
                    scale * (format == CudaKvFormat::fp8    ? e4m3(code)
                             : format == CudaKvFormat::int8 ? code - 128.0
                                                            : (code >> at.shift & 15) - 8.0);
                auto& row = rows[(std::size_t{t} * c.kv_heads + h) * c.dim + d];
                ASSERT_NEAR(x, bf16_to_f32(row),
                            scale * (format == CudaKvFormat::fp8 ? 16.1 : 0.501));
                decoded_[side][s].resize(rows.size());
                decoded_[side][s][(std::size_t{t} * c.kv_heads + h) * c.dim + d] = x;
              }
            }
      sealed_ = to;
      sealed_stride_ = stride;
      format_ = format;
      EXPECT_LT(worst(attend(1, 1)), 0.015);
      EXPECT_EQ(attend(1, 1), attend(1, 0)) << "whole rows";
      format_ = CudaKvFormat::bf16;
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
                               (is_value ? half : 0) + page_at(dim, positions[r] % kCudaPage, d)],
                        2);
            ASSERT_NEAR(bf16_to_f32(got), want, 0.005 * std::fabs(want) + 1e-4);
          }
        }
      }
  }
}

}  // namespace
}  // namespace quire
