// kernels/cuda/attend_testing.h - a cache with a few sequences on the device, attention over it in any
// number of steps, and softmax in double to compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/device_testing.h"

namespace quire {

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
            const std::uint32_t to = page_at(t % kCudaPage, d);
            std::memcpy(page + to, &keys_[s][from], 2);
            std::memcpy(page + half_ + to, &values_[s][from], 2);
          }
        }
    }
    bf16_bytes_ = arena.size();
    arena.resize(2 * bf16_bytes_);  // room for sealed blocks
    arena_ = up(arena);
    device_tables_ = up(tables_);
  }

  // All queries of all sequences in one step; in items of `rows` rows and, if `splits` is not 0, of
  // at most so many splits.
  Bits attend(std::uint32_t rows, std::uint32_t splits) {
    CudaPlan plan;
    Bits q;
    std::uint32_t row = 0;
    for (std::size_t s = 0; s < case_.lengths.size(); ++s) {
      q.insert(q.end(), queries_[s].begin(), queries_[s].end());
      for (std::uint32_t i = 0; i < case_.queries; i += rows) {
        const std::uint32_t count = std::min(rows, case_.queries - i);
        const std::uint32_t position = case_.lengths[s] - case_.queries + i, end = position + count;
        add_attention(
            plan,
            {.table = first_[s],
             .row = row,
             .position = position,
             .past = position,
             .begin = case_.window ? position + 1 - std::min(position + 1, case_.window) : 0,
             .end = end,
             .partial = kNoPartial,
             .row_count = static_cast<std::uint16_t>(count),
             .partial_stride = 0},
            cuda_split(case_.dim), splits);
        row += count;
      }
    }
    void* out = room(activation_elements(row, heads_ * case_.dim) * 2);
    AttendArgs a = arguments();
    use(plan, a);
    a.queries = up(q);
    a.output = out;
    ok(rows == 1 ? api_->attend_decode(a, stream_) : api_->attend_prefill(a, stream_));
    ok(api_->attend_merge(a, stream_));
    return plain_rows(out, row);
  }

  AttendArgs arguments() const {
    AttendArgs a{};
    a.arena = arena_;
    a.tables = device_tables_;
    a.query_heads = heads_, a.kv_heads = case_.kv_heads, a.head_dim = case_.dim;
    a.window = case_.window;
    a.layer_offset = std::uint64_t{kLayer} * case_.kv_heads * 2 * half_;
    a.page_bytes = 2 * half_;
    return a;
  }
  Bits plain_rows(const void* out, std::uint32_t rows) {
    const std::uint32_t width = heads_ * case_.dim;
    const Bits packed = down<std::uint16_t>(out, activation_elements(rows, width));
    Bits result(std::size_t{rows} * width);
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::uint32_t k = 0; k < width; ++k)
        result[std::size_t{r} * width + k] = packed[activation_at(rows, width, r, k)];
    return result;
  }

  // What a row at a position reads of a token's key (side 0) or value.
  virtual double stored(std::uint32_t side, std::size_t s, std::uint32_t, std::uint32_t,
                        std::size_t i) const {
    return bf16_to_f32((side ? values_ : keys_)[s][i]);
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
                     stored(0, s, end - 1, t, at + d);
            const double p = std::exp2(dot);
            sum += p;
            for (std::uint32_t d = 0; d < dim; ++d) out[d] += p * stored(1, s, end - 1, t, at + d);
          }
          for (std::uint32_t d = 0; d < dim; ++d) {
            const double error =
                std::fabs(bf16_to_f32(got[(row * heads_ + h) * dim + d]) - out[d] / sum);
            if (!(error <= most)) most = std::isnan(error) ? 1e9 : error;
          }
        }
    return most;
  }

  AttendCase case_;
  std::uint32_t heads_ = 0;
  std::size_t half_ = 0, block_ = 0, bf16_bytes_ = 0;
  std::vector<std::uint32_t> tables_, first_;
  std::vector<Bits> keys_, values_, queries_;
  std::byte* arena_ = nullptr;
  const std::uint32_t* device_tables_ = nullptr;
};

}  // namespace quire
