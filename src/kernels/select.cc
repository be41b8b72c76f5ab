#include "kernels/select.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/ref/math.h"

namespace quire {
namespace {

// The best `wanted` of the places [0, sums.size()), ascending; those below `forced` first.
void best_places(std::span<const float> sums, std::uint32_t wanted, std::uint32_t forced,
                 std::vector<std::uint32_t>& order) {
  order.resize(sums.size());
  std::iota(order.begin(), order.end(), 0u);
  if (wanted >= order.size()) return;
  const auto better = [&](std::uint32_t a, std::uint32_t b) {
    if ((a < forced) != (b < forced)) return a < forced;
    return sums[a] != sums[b] ? sums[a] > sums[b] : a < b;
  };
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(),
                   better);
  order.resize(wanted);
  std::sort(order.begin(), order.end());
}

}  // namespace

const SelectKernels& select_kernels(Isa isa) {
  return isa == Isa::scalar ? kSelectScalar : isa == Isa::avx2 ? kSelectAvx2 : kSelectAvx512;
}

void PageBounds::add(std::uint32_t lane, const float* keys, std::uint32_t tokens) {
  std::vector<float>& of = lanes_[lane];
  const std::size_t at = of.size();
  of.resize(at + 2 * dim_);
  for (std::uint32_t c = 0; c < dim_; ++c) {
    const float* const channel = keys + std::size_t{c} * tokens;
    float low = channel[0], high = channel[0];
    for (std::uint32_t t = 1; t < tokens; ++t) {
      low = std::min(low, channel[t]);
      high = std::max(high, channel[t]);
    }
    of[at + c] = low;
    of[at + dim_ + c] = high;
  }
}

void PageBounds::cut(std::uint32_t pages) {
  for (std::vector<float>& of : lanes_)
    of.resize(std::min(of.size(), std::size_t{2} * dim_ * pages));
}

std::uint64_t PageBounds::bytes() const {
  std::uint64_t sum = 0;
  for (const std::vector<float>& of : lanes_) sum += of.size() * sizeof(float);
  return sum;
}

void choose_pages(std::span<const float> scores, std::uint32_t count,
                  std::vector<std::uint32_t>& pages) {
  best_places(scores, std::max(count, 3u), 0, pages);
}

void add_antidiagonal_shares(const SelectKernels& kernels, const SelectKeys& keys,
                             const SelectQueries& queries, SelectScratch& scratch,
                             std::span<float> shares) {
  const std::uint32_t dim = keys.dim, stride = kSelectStride;
  const std::uint32_t per_page = keys.tokens_per_page / stride, groups = keys.pages * per_page;
  CHECK(keys.tokens_per_page % stride == 0 && queries.first % stride == 0 &&
        shares.size() == keys.pages);
  const std::uint32_t strides = (queries.count + stride - 1) / stride;
  scratch.queries.assign(std::size_t{strides} * dim * stride, 0.0f);
  for (std::uint32_t i = 0; i < queries.count; ++i) {
    float* const to = scratch.queries.data() + std::size_t{i / stride} * dim * stride;
    for (std::uint32_t d = 0; d < dim; ++d)
      to[d * stride + stride - 1 - i % stride] = queries.rows[i * queries.stride + d];
  }
  scratch.scores.resize(std::size_t{strides} * groups);
  kernels.antidiagonals(keys.keys, keys.pages, keys.tokens_per_page, dim, scratch.queries.data(),
                        strides, scratch.scores.data(), groups);
  const float by = queries.scale / static_cast<float>(stride);
  for (std::uint32_t i = 0; i < strides; ++i) {
    float* const row = scratch.scores.data() + std::size_t{i} * groups;
    const std::uint32_t seen = queries.first / stride + i + 1;  // up to its own
    float top = row[0] * by, sum = 0;
    for (std::uint32_t j = 0; j < seen; ++j) top = std::max(top, row[j] *= by);
    for (std::uint32_t j = 0; j < seen; ++j) sum += row[j] = ref::exp(row[j] - top);
    const float weight = 1 / (sum * static_cast<float>(strides));
    for (std::uint32_t j = 0; j < seen; ++j) shares[j / per_page] += row[j] * weight;
  }
}

void choose_blocks(std::span<const float> shares, double threshold, SelectScratch& scratch,
                   std::vector<std::uint32_t>& pages) {
  pages.clear();
  if (shares.size() < 2) return;
  double all = 0;
  for (const float x : shares) all += x;
  std::vector<std::uint32_t>& order = scratch.order;
  order.resize(shares.size() - 1);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin() + 1, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return shares[a] != shares[b] ? shares[a] > shares[b] : a < b;
  });
  double held = double{shares.back()} + shares[0];
  pages.push_back(0);
  for (std::size_t i = 1; i < order.size() && held < threshold * all; ++i) {
    held += shares[order[i]];
    pages.push_back(order[i]);
  }
  std::sort(pages.begin(), pages.end());
}

void add_slashes(const SelectKernels& kernels, const MassKernels& mass, const SelectKeys& keys,
                 const SelectQueries& queries, SelectScratch& scratch, std::span<float> columns,
                 std::span<float> diagonals) {
  CHECK(columns.size() == keys.end && diagonals.size() == keys.end);
  const std::uint32_t n = std::min(queries.count, kSlashQueries), from = queries.count - n;
  const std::size_t slots = std::size_t{keys.pages} * keys.tokens_per_page;
  scratch.queries.resize(std::size_t{n} * keys.dim);
  for (std::uint32_t i = 0; i < n; ++i)
    for (std::uint32_t d = 0; d < keys.dim; ++d)
      scratch.queries[i * keys.dim + d] =
          queries.scale * queries.rows[(from + i) * queries.stride + d];
  scratch.scores.resize(n * slots);
  scratch.weights.resize(slots + 16);
  kernels.products(keys.keys, keys.pages, keys.tokens_per_page, keys.dim, scratch.queries.data(), n,
                   scratch.scores.data(), slots);
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t last = queries.first + from + i;
    float* const row = scratch.scores.data() + i * slots;
    std::fill(row + last + 1, row + slots, -std::numeric_limits<float>::infinity());
    scratch.row.assign(slots, 0.0f);
    const MassRow all{0, last + 1, 0};
    mass.fold(&all, 1, row, scratch.weights.data(), MassRule::sum, 1, last + 1, scratch.row.data());
    for (std::uint32_t j = 0; j <= last; ++j) {
      columns[j] += scratch.row[j];
      diagonals[last - j] += scratch.row[j];
    }
  }
}

void choose_slashes(std::span<const float> columns, std::span<const float> diagonals,
                    const SparsePrefill& how, std::uint32_t first, std::uint32_t tokens_per_page,
                    SelectScratch& scratch, std::vector<std::uint32_t>& pages) {
  const auto end = static_cast<std::uint32_t>(columns.size());
  const std::uint32_t own = first / tokens_per_page;
  std::vector<std::uint32_t> taken(own, 0);
  best_places(columns, how.columns, kSlashForced, scratch.order);
  for (const std::uint32_t slot : scratch.order)
    if (slot < first) taken[slot / tokens_per_page] = 1;
  best_places(diagonals, how.diagonals, kSlashForced, scratch.order);
  for (const std::uint32_t back : scratch.order) {
    if (back > end - 1) continue;
    const std::uint32_t low = first - std::min(first, back), high = end - 1 - back;
    for (std::uint32_t p = low / tokens_per_page; p <= high / tokens_per_page && p < own; ++p)
      taken[p] = 1;
  }
  pages.clear();
  for (std::uint32_t p = 0; p < own; ++p)
    if (taken[p] != 0) pages.push_back(p);
}

}  // namespace quire
