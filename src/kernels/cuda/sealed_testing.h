// kernels/cuda/sealed_testing.h - a cache on the device whose blocks are sealed there, read back and
// decoded here, and attention over it.
#pragma once

#include "kernels/cuda/attend_testing.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/sealed.h"

namespace quire {

struct Keeps {
  std::uint32_t recent, sinks;
};

class CudaSealed : public CudaAttend {
 protected:
  // Seals every full block of the layer, and decodes it with the CPU's codec.
  void seal(CudaKvFormat format, Keeps keeps) {
    format_ = format;
    codecs_ = nullptr;
    for (const Format* f : formats())
      if (cuda_kv_format(*f) == format) codecs_ = f;
    ASSERT_NE(codecs_, nullptr);
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
    each_full_page([&](std::size_t s, std::uint32_t b, std::uint32_t head, std::size_t at) {
      std::vector<std::byte> page(page_bytes());
      page_from_cuda(*codecs_, shape(), sealed_bytes().data() + at, page.data());
      if (!cuda_rotates(format)) {
        EXPECT_EQ(page, encoded(s, b, head));
      }
      keep_decoded(s, b, head, page);
    });
    sealed_bytes_.clear();
  }

  // Encodes every full block here, and puts it into the place of the one that the device sealed.
  void encode_here() {
    std::vector<std::byte> arena = sealed_bytes();
    each_full_page([&](std::size_t s, std::uint32_t block, std::uint32_t head, std::size_t at) {
      const std::vector<std::byte> page = encoded(s, block, head);
      page_to_cuda(*codecs_, shape(), page.data(), arena.data() + at);
      keep_decoded(s, block, head, page);
    });
    sealed_bytes_.clear();
    arena_ = up(arena);
  }

  PageShape shape() const { return {kCudaPage, case_.dim, case_.dim}; }
  std::size_t page_bytes() const {
    return codecs_->key_bytes(shape()) + codecs_->value_bytes(shape());
  }
  const std::vector<std::byte>& sealed_bytes() {
    if (sealed_bytes_.empty()) sealed_bytes_ = down<std::byte>(arena_, 2 * bf16_bytes_);
    return sealed_bytes_;
  }

  template <class F>
  void each_full_page(F f) {  // f(sequence, block, head, offset in the arena)
    for (std::size_t s = 0; s < case_.lengths.size(); ++s)
      for (std::uint32_t block = 0; block < case_.lengths[s] / kCudaPage; ++block)
        for (std::uint32_t head = 0; head < case_.kv_heads; ++head)
          f(s, block, head,
            std::size_t{sealed_tables_[first_[s] + block]} * 256 +
                (kLayer * case_.kv_heads + head) * stride_);
  }

  std::size_t row_at(std::uint32_t block, std::uint32_t slot, std::uint32_t head) const {
    return ((std::size_t{block} * kCudaPage + slot) * case_.kv_heads + head) * case_.dim;
  }
  // A page as the CPU encodes it.
  std::vector<std::byte> encoded(std::size_t s, std::uint32_t block, std::uint32_t head) const {
    std::vector<float> rows[2];
    for (std::uint32_t side = 0; side < 2; ++side)
      for (std::uint32_t slot = 0; slot < kCudaPage; ++slot)
        for (std::uint32_t d = 0; d < case_.dim; ++d)
          rows[side].push_back(
              bf16_to_f32((side ? values_ : keys_)[s][row_at(block, slot, head) + d]));
    std::vector<std::byte> page(page_bytes());
    codecs_->encode(shape(), rows[0].data(), rows[1].data(), page.data());
    return page;
  }
  // What the CPU reads in a page.
  void keep_decoded(std::size_t s, std::uint32_t block, std::uint32_t head,
                    const std::vector<std::byte>& page) {
    std::vector<float> rows[2];
    for (auto& r : rows) r.resize(std::size_t{kCudaPage} * case_.dim);
    codecs_->decode(shape(), page.data(), rows[0].data(), rows[1].data());
    for (std::uint32_t side = 0; side < 2; ++side) {
      decoded_[side].resize(case_.lengths.size());
      decoded_[side][s].resize(keys_[s].size());
      for (std::uint32_t slot = 0; slot < kCudaPage; ++slot)
        for (std::uint32_t d = 0; d < case_.dim; ++d)
          decoded_[side][s][row_at(block, slot, head) + d] =
              double{rows[side][slot * case_.dim + d]};
    }
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
  const Format* codecs_ = nullptr;  // the same for the CPU
  std::vector<std::byte> sealed_bytes_;
  Keeps keeps_{};
  bool rotated_ = false;
  std::size_t stride_ = 0;
  std::vector<std::uint32_t> sealed_tables_;
  std::vector<std::vector<double>> decoded_[2];
};

}  // namespace quire
