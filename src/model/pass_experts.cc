// The second half of a layer with experts (models of many experts: a router picks a few for each row).
//
//   every thread   residual stream, norms                                            barrier
//   columns        the router's scores                                               barrier
//   every thread   choices and lists of rows by expert, all alike; its share of the rows is encoded
//                  for each expert that takes it                                     barrier
//   units          gate, up and their product, 32 inner ones of an expert at a time  barrier
//   columns        down, added to a row's sum expert by expert, ascending            barrier
//
// A row's sum depends on its own experts alone: lists may have any length.
#include <algorithm>
#include <cstring>

#include "kernels/ref/math.h"
#include "model/pass.h"

namespace quire {

void Pass::mix_experts(const Layer& l) {
  const std::uint32_t hidden = c_.hidden;
  for (std::uint32_t r = row_phase_.begin; r < row_phase_.end; ++r) {
    absorb(r, l.spec.post_a, l.w.post_a);
    if (sharing_ == Sharing::few && r % worker_.count != worker_.index) continue;
    const float* h = normed(l.spec.pre_f, l.w.pre_f, x_row(r), hidden, own_.row.data());
    std::memcpy(floats(scratch_.normed) + std::size_t{r} * hidden, h, hidden * sizeof(float));
  }
  worker_.barrier();
  score_experts(l);
  worker_.barrier();
  choose_experts(l);
  encode_for_experts(l);
  worker_.barrier();
  multiply_experts(l);
  worker_.barrier();
  add_experts(l);
  worker_.barrier();
}

// The shared expert's gate is one more score.
void Pass::score_experts(const Layer& l) {
  const Experts& e = l.spec.ffn.experts;
  const std::size_t stride = e.count + 1;
  const PackedMatrix& router = l.w.router;
  const ActivationRows in{
      .rows = row_count_, .inputs = c_.hidden, .plain = floats(scratch_.normed)};
  const Range mine = share(router.padded_outputs(), kPanelOutputs);
  if (mine.begin < mine.end)
    s_.linear.multiply(router, in, 0, row_count_, mine.begin, mine.end, floats(scratch_.scores),
                       stride, nullptr);
  if (e.shared_gate && worker_.index + 1 == worker_.count)
    s_.linear.multiply(l.w.shared_gate, in, 0, row_count_, 0, l.w.shared_gate.padded_outputs(),
                       floats(scratch_.scores) + e.count, stride, nullptr);
}

void Pass::choose_experts(const Layer& l) {
  const Experts& e = l.spec.ffn.experts;
  own_.scores.resize(e.count);
  own_.choices.resize(std::size_t{row_count_} * e.used);
  for (std::uint32_t r = 0; r < row_count_; ++r) {
    const float* from = floats(scratch_.scores) + std::size_t{r} * (e.count + 1);
    std::copy_n(from, e.count, own_.scores.data());
    if (e.router_bias) s_.vector.add(own_.scores.data(), l.w.router_bias.data(), e.count);
    route(e, own_.scores, l.w.choice_bias, own_.choices.data() + std::size_t{r} * e.used);
  }
  own_.lists.make(e, row_count_, own_.choices);
}

void Pass::encode_for_experts(const Layer& l) {
  const Experts& e = l.spec.ffn.experts;
  const bool fine = l.index + 1 == c_.layers;
  const float* rows = floats(scratch_.normed);
  const ActivationRows in = scratch_.gathered.of(c_.hidden, fine);
  const Range items = share(static_cast<std::uint32_t>(own_.lists.items.size()), 1);
  for (std::uint32_t i = items.begin; i < items.end; ++i) {
    const std::uint32_t row = own_.lists.items[i].row;
    if (row != 0xffffffffu) encode(rows + std::size_t{row} * c_.hidden, i, 0, c_.hidden, in);
  }
  if (e.shared_width == 0) return;
  const ActivationRows shared = scratch_.hidden.of(c_.hidden, fine);
  const Range mine = share(row_count_, 1);
  for (std::uint32_t r = mine.begin; r < mine.end; ++r)
    encode(rows + std::size_t{r} * c_.hidden, r, 0, c_.hidden, shared);
}

// Units of all experts that have rows, and of the shared one, split evenly.
void Pass::multiply_experts(const Layer& l) {
  const Experts& e = l.spec.ffn.experts;
  const bool fine = l.index + 1 == c_.layers;
  const auto units_of = [](std::uint32_t width) { return (width + kGateUpUnit - 1) / kGateUpUnit; };
  const std::uint32_t each = units_of(e.width), shared = units_of(e.shared_width);
  const auto experts = static_cast<std::uint32_t>(own_.lists.lists.size());
  const ActivationRows in = scratch_.gathered.of(c_.hidden, fine),
                       inner = scratch_.gathered_inner.of(e.width, fine),
                       shared_in = scratch_.hidden.of(c_.hidden, fine),
                       shared_inner = scratch_.inner.of(e.shared_width, fine);
  const Range mine = share(experts * each + shared, 1);
  for (std::uint32_t u = mine.begin; u < mine.end; ++u) {
    const bool is_shared = u >= experts * each;
    const std::uint32_t first = (is_shared ? u - experts * each : u % each) * kGateUpUnit;
    const std::uint32_t width = is_shared ? e.shared_width : e.width;
    const Range units{first, std::min(width, first + kGateUpUnit)};
    if (is_shared) {
      multiply_units(l.spec.ffn, l.w.shared_gate_up, nullptr, {0, row_count_}, units, shared_in,
                     shared_inner);
      continue;
    }
    const ExpertLists::List& list = own_.lists.lists[u / each];
    const float* bias =
        e.bias ? l.w.expert_gate_up_bias.data() + std::size_t{list.expert} * 2 * e.width : nullptr;
    multiply_units(l.spec.ffn, l.w.expert_gate_up[list.expert], bias, {list.begin, list.end}, units,
                   in, inner);
  }
}

// This thread's columns of y, a few at a time.
void Pass::add_experts(const Layer& l) {
  constexpr std::uint32_t kColumns = 2 * kGateUpUnit;
  const Experts& e = l.spec.ffn.experts;
  const bool fine = l.index + 1 == c_.layers;
  const ActivationRows inner = scratch_.gathered_inner.of(e.width, fine),
                       shared = scratch_.inner.of(e.shared_width, fine);
  const Range mine =
      share((c_.hidden + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs, kPanelOutputs);
  for (std::uint32_t at = mine.begin; at < mine.end; at += kColumns) {
    const std::uint32_t end = std::min(mine.end, at + kColumns),
                        count = std::min(end, c_.hidden) - at;
    const auto y = [&](std::uint32_t row) {
      return floats(scratch_.y) + std::size_t{row} * c_.hidden + at;
    };
    // Rows [begin, end) of `in` times these columns; the first is at own_.unit.
    const auto multiply = [&](const PackedMatrix& w, const ActivationRows& in, std::uint32_t begin,
                              std::uint32_t until) {
      s_.linear.multiply(w, in, begin, until, at, end,
                         floats(own_.unit) - std::size_t{begin} * kColumns - at, kColumns, nullptr);
    };
    for (std::uint32_t r = 0; r < row_count_; ++r) std::fill_n(y(r), count, 0.0f);
    for (const ExpertLists::List& list : own_.lists.lists) {
      multiply(l.w.expert_down[list.expert], inner, list.begin, list.end);
      for (std::uint32_t i = list.begin; i < list.end; ++i) {
        float* from = floats(own_.unit) + std::size_t{i - list.begin} * kColumns;
        if (e.bias)
          s_.vector.add(
              from, l.w.expert_down_bias.data() + std::size_t{list.expert} * c_.hidden + at, count);
        const ExpertLists::Item& item = own_.lists.items[i];
        s_.vector.add_scaled(y(item.row), from, item.weight, count);
      }
    }
    if (e.shared_width != 0) multiply(l.w.shared_down, shared, 0, row_count_);
    for (std::uint32_t r = 0; r < row_count_; ++r) {
      if (e.shared_width != 0)
        s_.vector.add_scaled(y(r), floats(own_.unit) + std::size_t{r} * kColumns,
                             shared_weight(l, r), count);
      if (l.spec.residual != 1) s_.vector.scale(y(r), l.spec.residual, count);
    }
  }
}

float Pass::shared_weight(const Layer& l, std::uint32_t row) const {
  const Experts& e = l.spec.ffn.experts;
  if (!e.shared_gate) return 1;
  return ref::times_sigmoid(1, floats(scratch_.scores)[std::size_t{row} * (e.count + 1) + e.count]);
}

}  // namespace quire
