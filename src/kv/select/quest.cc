#include "kv/select/quest.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace quire {

PageBounds::PageBounds(std::uint32_t tokens_per_page, std::uint32_t dim)
    : page_(tokens_per_page), dim_(dim) {
  CHECK(page_ > 0 && dim_ > 0);
}

void PageBounds::add(std::span<const float> key) {
  CHECK(key.size() == dim_);
  if (tokens_++ % page_ == 0) {
    low_.insert(low_.end(), key.begin(), key.end());
    high_.insert(high_.end(), key.begin(), key.end());
    return;
  }
  float* low = &low_[low_.size() - dim_];
  float* high = &high_[high_.size() - dim_];
  for (std::uint32_t c = 0; c < dim_; ++c) {
    low[c] = std::min(low[c], key[c]);
    high[c] = std::max(high[c], key[c]);
  }
}

void PageBounds::score(std::span<const float> queries, std::span<float> scores) const {
  CHECK(queries.size() % dim_ == 0 && scores.size() == pages());
  std::fill(scores.begin(), scores.end(), -std::numeric_limits<float>::infinity());
  for (std::size_t q = 0; q < queries.size(); q += dim_)
    for (std::size_t page = 0; page < scores.size(); ++page) {
      float sum = 0;
      for (std::uint32_t c = 0; c < dim_; ++c)
        sum += std::max(queries[q + c] * low_[page * dim_ + c],
                        queries[q + c] * high_[page * dim_ + c]);
      scores[page] = std::max(scores[page], sum);
    }
}

void choose_pages(std::span<const float> scores, std::uint32_t count,
                  std::vector<std::uint32_t>& pages) {
  pages.resize(scores.size());
  std::iota(pages.begin(), pages.end(), 0u);
  const std::size_t wanted = std::max(count, 3u);
  if (wanted >= pages.size()) return;
  const std::uint32_t last = pages.back();
  std::nth_element(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(wanted), pages.end(),
                   [&](std::uint32_t a, std::uint32_t b) {
                     if ((a == last) != (b == last)) return a == last;
                     return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                   });
  pages.resize(wanted);
  std::sort(pages.begin(), pages.end());
}

}  // namespace quire
