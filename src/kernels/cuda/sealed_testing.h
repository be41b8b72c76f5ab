// kernels/cuda/sealed_testing.h - a cache on the device whose blocks are sealed there, read back and
// decoded here, and attention over it.
#pragma once

#include "kernels/cuda/attend_testing.h"
#include "kernels/cuda/sealed.h"

namespace quire {

struct Keeps {
  std::uint32_t recent, sinks;
};

class CudaSealed : public CudaAttend {
 protected:
  // Seals every full block of the layer and decodes it.
  void seal(CudaKvFormat format, Keeps keeps) {
    format_ = format;
    keeps_ = keeps;
    stride_ = (sealed_page_bytes(format, case_.dim) + 63) / 64 * 64;
    const std::size_t block = (kLayers * case_.kv_heads * stride_ + 255) / 256 * 256;
    std::vector<SealPair> pairs;
    sealed_tables_.clear();
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      sealed_tables_.push_back(static_cast<std::uint32_t>((bf16_bytes_ + i * block) / 256));
      pairs.push_back({tables_[i], sealed_tables_[i]});
    }
    const auto count = static_cast<std::uint32_t>(pairs.size());
    ok(api_->seal({.arena = arena_,
                   .pairs = up(pairs),
                   .count = up(std::vector<std::uint32_t>{count}),
                   .pairs_max = count + 3,
                   .kv_heads = case_.kv_heads,
                   .head_dim = case_.dim,
                   .row_layer_offset = std::uint64_t{kLayer} * case_.kv_heads * 2 * half_,
                   .row_page_bytes = 2 * half_,
                   .layer_offset = std::uint64_t{kLayer} * case_.kv_heads * stride_,
                   .page_bytes = stride_,
                   .format = format},
                  stream_));
    const auto bytes = down<std::byte>(arena_, 2 * bf16_bytes_);
    for (std::uint32_t side = 0; side < 2; ++side) {
      decoded_[side].assign(case_.lengths.size(), {});
      for (std::size_t s = 0; s < case_.lengths.size(); ++s) {
        const Bits& rows = side ? values_[s] : keys_[s];
        decoded_[side][s].resize(rows.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
          const auto d = static_cast<std::uint32_t>(i % case_.dim),
                     h = static_cast<std::uint32_t>(i / case_.dim % case_.kv_heads),
                     t = static_cast<std::uint32_t>(i / case_.dim / case_.kv_heads);
          if ((t / kCudaPage + 1) * kCudaPage > case_.lengths[s]) continue;
          const std::byte* page = bytes.data() +
                                  std::size_t{sealed_tables_[first_[s] + t / kCudaPage]} * 256 +
                                  (kLayer * case_.kv_heads + h) * stride_;
          decoded_[side][s][i] = decode(page, side, t % kCudaPage, d);
          std::uint16_t scale;
          std::memcpy(&scale, page + sealed_scale_at(format, case_.dim, side, t % kCudaPage), 2);
          double error = f16_to_f32(scale) * (format == CudaKvFormat::fp8 ? 16.1 : 0.51);
          if (format == CudaKvFormat::int2)  // what lies beyond its levels is cut off
            error += std::max(0.0, std::fabs(bf16_to_f32(rows[i])) - 2.0 * f16_to_f32(scale));
          ASSERT_NEAR(decoded_[side][s][i], bf16_to_f32(rows[i]), error);
        }
      }
    }
  }

  double decode(const std::byte* page, std::uint32_t side, std::uint32_t slot,
                std::uint32_t d) const {
    std::uint16_t scale;
    std::memcpy(&scale, page + sealed_scale_at(format_, case_.dim, side, slot), 2);
    const SealedPlace at = sealed_code_at(format_, case_.dim, side, slot, d);
    const auto code = static_cast<std::uint8_t>(page[at.byte]);
    if (format_ != CudaKvFormat::fp8)
      return f16_to_f32(scale) * ((code >> at.shift & ((1 << sealed_bits(format_)) - 1)) -
                                  double{sealed_centre(format_)});
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double size =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return f16_to_f32(scale) * (code & 128 ? -size : size);
  }

  double stored(std::uint32_t side, std::size_t s, std::uint32_t position, std::uint32_t t,
                std::size_t i) const override {
    const RowPages rows = cuda_row_pages(position, case_.window, keeps_.recent, keeps_.sinks);
    const std::uint32_t block = t / kCudaPage;
    if (block < rows.sinks || block >= rows.first)
      return CudaAttend::stored(side, s, position, t, i);
    return decoded_[side][s][i];
  }

  // Up to `together` rows of a block at a time.
  Bits attend_sealed(bool cut, std::uint32_t together = 1) {
    CudaPlan plan;
    Bits q;
    std::uint32_t row = 0;
    const std::uint32_t split = cuda_split(case_.dim);
    for (std::size_t s = 0; s < case_.lengths.size(); ++s) {
      q.insert(q.end(), queries_[s].begin(), queries_[s].end());
      for (std::uint32_t i = 0, count; i < case_.queries; i += count, row += count) {
        const std::uint32_t position = case_.lengths[s] - case_.queries + i;
        count = std::min({together, case_.queries - i, kCudaPage - position % kCudaPage});
        const RowPages rows = cuda_row_pages(position, case_.window, keeps_.recent, keeps_.sinks);
        const std::uint32_t seen =
            case_.window ? position + 1 - std::min(position + 1, case_.window) : 0;
        const std::uint32_t end = rows.first * kCudaPage,
                            begin = std::min(end, std::max(seen, rows.sinks * kCudaPage));
        AttendItem item{.table = first_[s],
                        .row = row,
                        .position = position,
                        .past = position,
                        .begin = begin,
                        .end = end,
                        .partial = kNoPartial,
                        .row_count = sealed_row_count(count, rows.count),
                        .partial_stride = 0};
        const std::uint32_t first = plan.partials,
                            splits =
                                1 + (begin < end ? (end + split - 1) / split - begin / split : 0);
        if (cut) {
          item.row_count = sealed_row_count(count, 0);
          item.partial_stride = static_cast<std::uint16_t>(splits);
          for (std::uint32_t at = begin; at < end; at = item.end) {
            item.begin = at;
            item.end = std::min(end, (at / split + 1) * split);
            item.partial = plan.partials++;
            plan.items.push_back(item);
          }
          item.begin = item.end = end;
          item.partial = plan.partials++;
          item.row_count = sealed_row_count(count, rows.count);
        }
        plan.items.push_back(item);
        for (std::uint32_t r = 0; r < count; ++r)
          plan.merges.push_back({row + r, first + r * splits, cut ? splits : 0});
        plan.partials = first + (cut ? count * splits : 0);
      }
    }
    AttendArgs a = arguments();
    a.format = format_;
    a.row_tables = a.tables;
    a.row_layer_offset = a.layer_offset;
    a.row_page_bytes = a.page_bytes;
    a.tables = up(sealed_tables_);
    a.layer_offset = std::uint64_t{kLayer} * case_.kv_heads * stride_;
    a.page_bytes = stride_;
    a.recent_blocks = keeps_.recent, a.sink_blocks = keeps_.sinks;
    use(plan, a);
    a.queries = up(q);
    a.rotated = rotated_;
    a.output = room(activation_elements(row, heads_ * case_.dim) * 2);
    ok(api_->attend_decode(a, stream_));
    ok(api_->attend_merge(a, stream_));
    return plain_rows(a.output, row);
  }

  CudaKvFormat format_ = CudaKvFormat::fp8;
  Keeps keeps_{};
  bool rotated_ = false;
  std::size_t stride_ = 0;
  std::vector<std::uint32_t> sealed_tables_;
  std::vector<std::vector<double>> decoded_[2];
};

}  // namespace quire
