#include "model/tap.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

Tap::Tap(const ModelConfig& config, const Geometry& geometry, std::uint32_t group)
    : group_(group),
      layers_(static_cast<std::uint32_t>(geometry.groups[group].layers.size())),
      query_heads_(config.per_layer[geometry.groups[group].layers[0]].attn.query_heads),
      head_dim_(geometry.groups[group].key_dim) {}

void Tap::watch(std::uint32_t first, std::uint32_t count) {
  first_ = first;
  count_ = count;
  queries_.assign(std::size_t{layers_} * count * query_heads_ * head_dim_, 0.0f);
}

void Tap::watch_states(std::uint32_t first, std::uint32_t count, std::uint32_t width) {
  states_first_ = first;
  states_count_ = count;
  states_width_ = width;
  states_.resize(std::max(states_.size(), std::size_t{count} * width));
}

void Tap::advance(std::uint32_t first) {
  CHECK(first >= first_);
  const std::size_t width = std::size_t{query_heads_} * head_dim_;
  const std::size_t gone = std::min(first - first_, count_) * width, all = count_ * width;
  for (std::uint32_t layer = 0; layer < layers_; ++layer)
    std::copy(queries_.begin() + static_cast<std::ptrdiff_t>(layer * all + gone),
              queries_.begin() + static_cast<std::ptrdiff_t>((layer + 1) * all),
              queries_.begin() + static_cast<std::ptrdiff_t>(layer * all));
  first_ = first;
}

const float* Tap::query(std::uint32_t layer, std::uint32_t token) const {
  CHECK(layer < layers_ && token >= first_ && token - first_ < count_);
  return queries_.data() +
         (std::size_t{layer} * count_ + (token - first_)) * query_heads_ * head_dim_;
}

void Tap::put(std::uint32_t layer, std::uint32_t token, const float* queries) {
  if (token < first_ || token - first_ >= count_) return;
  const std::size_t width = std::size_t{query_heads_} * head_dim_;
  std::copy_n(queries, width,
              queries_.data() + (std::size_t{layer} * count_ + (token - first_)) * width);
}

void Tap::sum_moments(std::uint32_t first, std::uint32_t end) {
  moments_first_ = first;
  moments_end_ = end;
  const std::size_t squared = std::size_t{head_dim_} * head_dim_;
  const Moments none{.run_sums = std::vector<float>(head_dim_),
                     .run_products = std::vector<float>(squared),
                     .sums = std::vector<double>(head_dim_),
                     .products = std::vector<double>(squared)};
  moments_.assign(std::size_t{layers_} * query_heads_, none);
}

void Tap::add_moments(const MassKernels& kernels, std::uint32_t layer, std::uint32_t head,
                      std::uint32_t token, std::uint32_t count, const float* rows) {
  const std::uint32_t end = std::min(token + count, moments_end_);
  for (std::uint32_t t = std::max(token, moments_first_); t < end;) {
    const std::uint32_t stop = std::min(end, (t / kRun + 1) * kRun);
    Moments& m = moments(layer, head);
    kernels.moments(rows + std::size_t{t - token} * head_dim_, head_dim_, stop - t, head_dim_,
                    m.run_sums.data(), m.run_products.data());
    m.count += stop - t;
    if (stop % kRun == 0) close_run(m);
    t = stop;
  }
}

void Tap::close_run(Moments& m) {
  for (std::size_t i = 0; i < m.sums.size(); ++i) m.sums[i] += m.run_sums[i];
  for (std::size_t i = 0; i < m.products.size(); ++i) m.products[i] += m.run_products[i];
  std::ranges::fill(m.run_sums, 0.0f);
  std::ranges::fill(m.run_products, 0.0f);
}

std::uint64_t Tap::moment_count() const { return moments_.empty() ? 0 : moments_[0].count; }

// The last token has been read when sums are asked for, so its run can be closed.
std::span<const double> Tap::sums(std::uint32_t layer, std::uint32_t head) {
  Moments& m = moments(layer, head);
  close_run(m);
  return m.sums;
}

std::span<const double> Tap::products(std::uint32_t layer, std::uint32_t head) {
  Moments& m = moments(layer, head);
  close_run(m);
  return m.products;
}

}  // namespace quire
