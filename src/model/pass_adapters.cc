// Adapters (model/adapter/adapter.h): what they add to the linear layers of rows that have them.
//
//   keep     a linear layer's input is kept in f32, row by row
//   shrink   t = A h, of all adapters of all sets                                     barrier
//   expand   y = fma(B t, scale, y), behind the bias, where a thread has columns of y
//
// Threads split t like columns, or each has its own rows. Sums do not depend on that.
#include <algorithm>
#include <cstring>

#include "model/pass.h"

namespace quire {
namespace {

std::uint32_t padded_rank(const LowRank& pair) { return pair.a.padded_outputs(); }

}  // namespace

void AdapterScratch::size(const ModelConfig& config, std::uint32_t rows,
                          std::span<const AdapterSet* const> sets) {
  const auto cover = [](std::vector<float>& of, std::size_t count) {
    if (of.size() < count) of.resize(count);
  };
  const std::uint32_t width = config.widest([](const LayerSpec& l) { return l.attn.attended(); });
  inner_width = config.widest([](const LayerSpec& l) { return l.ffn.width; });
  input_width = std::max(config.hidden, width);
  cover(inputs, std::size_t{rows} * input_width);
  cover(inner, std::size_t{rows} * inner_width);
  std::uint32_t ranks = 0;
  for (const AdapterSet* set : sets) {
    std::uint32_t of_set = 0;
    for (const AdapterSet::Part& part : set->parts())
      of_set += 3 * (part.adapter->rank_max() + kPanelOutputs);
    ranks = std::max(ranks, of_set);
  }
  t_stride = ranks;
  cover(t, std::size_t{rows} * t_stride);
}

void Pass::find_adapted() {
  own_.adapted.groups.clear();
  if (step_.adapter_sets.empty()) return;
  own_.adapted.make(matrix_rows_.begin, matrix_rows_.end, step_.adapter_sets,
                    [&](std::uint32_t r) { return step_.adapters[step_row(r)]; });
}

// With few rows each thread prepares all inputs for itself.
float* Pass::adapter_inputs() const {
  return sharing_ == Sharing::few ? own_.adapter_inputs.data() : s_.adapters.inputs.data();
}

void Pass::keep(std::uint32_t row, const float* from, std::uint32_t count) const {
  const std::uint32_t slot = own_.adapted.slot(row);
  if (slot == AdaptedRows::kNone) return;
  std::memcpy(adapter_inputs() + std::size_t{slot} * s_.adapters.input_width, from,
              count * sizeof(float));
}

void Pass::keep_inner(std::uint32_t row, std::uint32_t first, const float* from,
                      std::uint32_t count) const {
  const std::uint32_t slot = own_.adapted.slot(row);
  if (slot == AdaptedRows::kNone) return;
  std::memcpy(s_.adapters.inner.data() + std::size_t{slot} * s_.adapters.inner_width + first, from,
              count * sizeof(float));
}

// t of a group lies adapter by adapter, linear layer by linear layer. Calls
// f(pair, group, its first number in a row of t, the part's scale) for each.
template <class F>
void Pass::each_pair(const Layer& l, std::span<const Adapted> linears, F f) const {
  for (const AdaptedRows::Group& group : own_.adapted.groups) {
    std::uint32_t at = 0;
    for (const AdapterSet::Part& part : group.set->parts())
      for (const Adapted linear : linears) {
        const LowRank& pair = part.adapter->layer(l.index)[static_cast<std::size_t>(linear)];
        if (!pair) continue;
        f(pair, group, linear, at, pair.scale * part.scale);
        at += padded_rank(pair);
      }
  }
}

// `linears` have the same input: [slot][stride] at `from`.
void Pass::shrink(const Layer& l, std::span<const Adapted> linears, float* from,
                  std::uint32_t stride) {
  if (own_.adapted.empty()) return;
  std::uint32_t panels = 0;
  each_pair(l, linears,
            [&](const LowRank& pair, auto&&...) { panels += padded_rank(pair) / kPanelOutputs; });
  const Range mine = sharing_ == Sharing::rows ? Range{0, panels} : share(panels, 1);
  std::uint32_t first = 0;  // panel of the pair
  each_pair(
      l, linears,
      [&](const LowRank& pair, const AdaptedRows::Group& group, Adapted, std::uint32_t at, float) {
        const std::uint32_t count = padded_rank(pair) / kPanelOutputs;
        const std::uint32_t begin = std::clamp(mine.begin, first, first + count) - first,
                            end = std::clamp(mine.end, first, first + count) - first;
        first += count;
        if (begin >= end) return;
        const ActivationRows in{.rows = group.end, .inputs = stride, .plain = from};
        s_.linear.multiply(pair.a, in, group.begin, group.end, begin * kPanelOutputs,
                           end * kPanelOutputs, s_.adapters.t.data() + at, s_.adapters.t_stride,
                           nullptr);
      });
  meet_after_columns();
}

// Adds to outputs [first, first + count) of one of `linears`, which shrink() had; `first` is a
// multiple of kPanelOutputs. Row matrix_rows_.begin is at `out`, without the outputs before `first`.
void Pass::expand(const Layer& l, std::span<const Adapted> linears, Adapted which,
                  std::uint32_t first, std::uint32_t count, float* out, std::size_t stride) {
  if (own_.adapted.empty()) return;
  float* const sums = own_.adapter_sums.data();
  each_pair(l, linears,
            [&](const LowRank& pair, const AdaptedRows::Group& group, Adapted linear,
                std::uint32_t at, float scale) {
              if (linear != which) return;
              // t has rows that are wider than B's inputs.
              const ActivationRows in{.rows = group.end,
                                      .inputs = s_.adapters.t_stride,
                                      .plain = s_.adapters.t.data() + at};
              for (std::uint32_t c = 0; c < count; c += kAdapterColumnsAtOnce) {
                const std::uint32_t some = std::min(kAdapterColumnsAtOnce, count - c);
                const std::uint32_t panels = (some + kPanelOutputs - 1) / kPanelOutputs;
                const std::uint32_t end = first + c + panels * kPanelOutputs;
                for (std::uint32_t s = group.begin; s < group.end; s += kAdapterRowsAtOnce) {
                  const std::uint32_t until = std::min(group.end, s + kAdapterRowsAtOnce);
                  s_.linear.multiply(pair.b, in, s, until, first + c, end,
                                     sums - std::size_t{s} * kAdapterColumnsAtOnce - first - c,
                                     kAdapterColumnsAtOnce, nullptr);
                  for (std::uint32_t i = s; i < until; ++i)
                    s_.vector.add_scaled(
                        out + std::size_t{own_.adapted.row(i) - matrix_rows_.begin} * stride + c,
                        sums + std::size_t{i - s} * kAdapterColumnsAtOnce, scale, some);
                }
              }
            });
}

}  // namespace quire
