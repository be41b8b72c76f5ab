#include "engine/scoring.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/check.h"
#include "engine/lane_rows.h"
#include "tensor/dequantize.h"

namespace quire {
namespace {

constexpr std::uint32_t kSlotsAtOnce = 64;  // of a lane, for one thread

// Threads take pieces of work until none is left.
template <class Work>
void share_work(ThreadPool& pool, std::uint32_t count, const Work& work) {
  std::atomic<std::uint32_t> next{0};
  pool.run([&](ThreadPool::Worker) {
    for (std::uint32_t i; (i = next.fetch_add(1)) < count;) work(i);
  });
}

}  // namespace

Result<std::shared_ptr<const OutputWeights>> OutputWeights::read(const Runtime& runtime,
                                                                 std::uint32_t layer) {
  const ModelConfig& c = runtime.config();
  auto made = std::make_shared<OutputWeights>();
  made->hidden_ = c.hidden;
  made->head_dim_ = c.head_dim;
  made->group_ = c.query_heads / c.kv_heads;
  const std::size_t inputs = std::size_t{c.query_heads} * c.head_dim;
  TRY(TensorView w,
      runtime.source().tensor("blk." + std::to_string(layer) + ".attn_output.weight"));
  TRY(const std::vector<std::byte> bytes, runtime.source().read_tensor(w));
  w.data = bytes;
  std::vector<float> row(inputs);
  made->columns_.resize(inputs * c.hidden);
  for (std::uint32_t o = 0; o < c.hidden; ++o) {
    dequantize_row(w.type, w.row(o), inputs, row.data());
    for (std::size_t i = 0; i < inputs; ++i) made->columns_[i * c.hidden + o] = row[i];
  }
  return std::shared_ptr<const OutputWeights>(std::move(made));
}

float OutputWeights::norm(std::uint32_t kv_head, std::span<const float> value,
                          std::vector<float>& scratch) const {
  float sum = 0;
  for (std::uint32_t g = 0; g < group_; ++g) {
    scratch.assign(hidden_, 0.0f);
    const std::size_t first = (std::size_t{kv_head} * group_ + g) * head_dim_;
    for (std::uint32_t i = 0; i < head_dim_; ++i) {
      const float* const column = &columns_[(first + i) * hidden_];
      for (std::uint32_t o = 0; o < hidden_; ++o) scratch[o] += value[i] * column[o];
    }
    for (const float x : scratch) sum += std::fabs(x);
  }
  return sum / static_cast<float>(group_);
}

Scoring::Scoring(std::span<const RetainMethod> methods) : methods_(methods.begin(), methods.end()) {
  for (const RetainMethod& m : methods_) needs_ = needs_ | m.needs;
}

Result<bool> Scoring::some(Runtime& runtime, const Sequence& s, Observer& observer,
                           double& operations) {
  const auto layers = static_cast<std::uint32_t>(observer.layers().size());
  if (layers == 0) return true;
  if (parts_.empty()) {
    kv_heads_ = observer.kv_heads();
    parts_.resize(methods_.size() * layers);
    observer.sum_last_queries(runtime, s, methods_);
  }
  lane_tokens(runtime, s, observer.layers()[0], 0);  // tables are right: threads only read
  if (asks(needs_, Signal::output_norms)) TRY_STATUS(add_norms(runtime, s, observer, operations));
  if (lane_ < norms_.size() || operations <= 0) return false;
  double slots = 0;
  for (std::uint32_t h = 0; h < kv_heads_; ++h)
    slots += lane_slots(runtime, s, observer.layers()[layer_], h);
  const double layer_cost = std::max(1.0, slots * observer.slot_operations(needs_));
  // A layer for each thread takes as long as one alone.
  const double wanted = std::max<double>(runtime.pool().size(), operations / layer_cost);
  const auto count = static_cast<std::uint32_t>(std::min<double>(wanted, layers - layer_));
  share_work(runtime.pool(), count,
             [&](std::uint32_t i) { score_layer(runtime, s, observer, layer_ + i); });
  layer_ += count;
  operations -= count * layer_cost;
  return layer_ == layers;
}

// Lane after lane, some slots of it: computes what their values add to the layer's output.
Status Scoring::add_norms(Runtime& runtime, const Sequence& s, const Observer& observer,
                          double& operations) {
  const ModelConfig& c = runtime.config();
  const std::uint32_t dim = c.head_dim;
  const std::vector<std::uint32_t>& layers = observer.layers();
  norms_.resize(layers.size() * kv_heads_);
  const double slot_cost = 2.0 * (c.query_heads / c.kv_heads) * dim * c.hidden;
  while (lane_ < norms_.size() && operations > 0) {
    const std::uint32_t layer = layers[lane_ / kv_heads_], head = lane_ % kv_heads_;
    if (!output_ || output_layer_ != layer) {
      TRY(output_, OutputWeights::read(runtime, layer));
      output_layer_ = layer;
    }
    std::vector<float>& norms = norms_[lane_];
    const std::uint32_t slots = lane_slots(runtime, s, layer, head);
    const auto first = static_cast<std::uint32_t>(norms.size());
    const double wanted = std::max(std::ceil(operations / slot_cost), double{kSlotsAtOnce});
    const auto count = static_cast<std::uint32_t>(std::min<double>(slots - first, wanted));
    const LaneRows rows = lane_rows(runtime, s, layer, head, {.keys = false, .values = true});
    norms.resize(first + count);
    share_work(runtime.pool(), (count + kSlotsAtOnce - 1) / kSlotsAtOnce, [&](std::uint32_t part) {
      std::vector<float> scratch;
      const std::uint32_t begin = first + part * kSlotsAtOnce;
      for (std::uint32_t i = begin; i < std::min(begin + kSlotsAtOnce, first + count); ++i)
        norms[i] =
            output_->norm(head, std::span(rows.values).subspan(std::size_t{i} * dim, dim), scratch);
    });
    operations -= count * slot_cost;
    if (norms.size() == slots) ++lane_;
  }
  if (lane_ == norms_.size()) output_.reset();
  return {};
}

void Scoring::score_layer(const Runtime& runtime, const Sequence& s, const Observer& observer,
                          std::uint32_t index) {
  const std::size_t layers = observer.layers().size();
  const std::uint32_t slots = lane_slots(runtime, s, observer.layers()[index], 0);
  bool alike = true;
  for (std::uint32_t h = 1; h < kv_heads_; ++h)
    alike &= lane_slots(runtime, s, observer.layers()[index], h) == slots;
  const std::uint32_t heads = alike ? kv_heads_ : 1;
  Observer::Gathered gathered;
  for (std::uint32_t h = 0; h < kv_heads_; h += heads) {
    observer.gather(runtime, s, needs_, index, h, heads, gathered);
    if (!norms_.empty())
      for (std::uint32_t i = h; i < h + heads; ++i) {
        const std::vector<float>& own = norms_[index * kv_heads_ + i];
        gathered.norms.insert(gathered.norms.end(), own.begin(), own.end());
      }
    gathered.in.output_norms = gathered.norms;
    const std::size_t count = std::size_t{heads} * gathered.in.slots;
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      Piece& part = parts_[m * layers + index];
      const std::size_t at = part.scores.size();
      part.scores.resize(at + count);
      methods_[m].score(methods_[m], gathered.in, std::span(part.scores).subspan(at));
      if (methods_[m].weigh) {
        part.weights.resize(at + count);
        methods_[m].weigh(methods_[m], gathered.in, std::span(part.weights).subspan(at));
      }
      part.slots.insert(part.slots.end(), heads, gathered.in.slots);
    }
  }
}

std::vector<LaneScoring> Scoring::take() {
  if (parts_.empty()) return {};
  const std::size_t layers = parts_.size() / methods_.size();
  std::vector<LaneScoring> all(methods_.size());
  for (std::size_t m = 0; m < methods_.size(); ++m) {
    all[m].kv_heads = kv_heads_;
    for (std::size_t i = 0; i < layers; ++i) {
      const Piece& part = parts_[m * layers + i];
      all[m].scores.insert(all[m].scores.end(), part.scores.begin(), part.scores.end());
      all[m].weights.insert(all[m].weights.end(), part.weights.begin(), part.weights.end());
      for (const std::uint32_t n : part.slots) all[m].begin.push_back(all[m].begin.back() + n);
    }
  }
  return all;
}

// Products of a step take integers, many at a time: about a sixteenth of the time of plain code.
double row_operations(const ModelConfig& c) {
  const double attention = 1.0 * c.head_dim * (2.0 * c.query_heads + 2.0 * c.kv_heads);
  return std::max(1.0, 2.0 / 16 * c.layers * c.hidden * (attention + 3.0 * c.feed_forward));
}

}  // namespace quire
