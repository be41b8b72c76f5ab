#include "model/state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace quire {
namespace {

Result<HugeBuffer> scratch_memory(std::size_t bytes) {
  return HugeBuffer::allocate(bytes, "the scratch of a step");
}

}  // namespace

void grow(HugeBuffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  auto larger = scratch_memory(bytes);
  CHECK(larger.ok());
  buffer = std::move(larger.value());
}

Status ActivationBuffer::size(Activations mode, ActivationKinds kinds, std::uint32_t rows,
                              std::uint32_t inputs) {
  if (kinds.quantized) {
    TRY(encoded, scratch_memory(activation_bytes(Activations::int16, rows, inputs)));
  }
  if (kinds.plain) {
    TRY(plain, scratch_memory(std::size_t{rows} * inputs * sizeof(float)));
  }
  view = {.mode = mode,
          .rows = rows,
          .inputs = inputs,
          .data = encoded.data(),
          .plain = floats(plain),
          .half_sums = kinds.half_sums};
  return {};
}

Status Scratch::size(const ModelConfig& config, const ModelOptions& options, ActivationKinds kinds,
                     std::uint32_t worker_count) {
  const std::uint32_t rows = options.rows_max;
  const std::uint32_t width = config.widest([](const LayerSpec&l) { return l.attn.queries(); }),
                      inner_width = config.widest([](const LayerSpec&l) {
                        return std::max(l.ffn.width, l.ffn.experts.shared_width);
                      }),
                      head_dim = config.widest([](const LayerSpec&l) { return l.attn.key_dim; });
  const auto matrix = [&](HugeBuffer& to, std::uint32_t columns) -> Status {
    TRY(to, scratch_memory(std::size_t{rows} * columns * sizeof(float)));
    return {};
  };
  for (HugeBuffer* stream : {&x, &y, &tail_x}) TRY_STATUS(matrix(*stream, config.hidden));
  for (HugeBuffer* heads : {&queries, &attended_rows}) TRY_STATUS(matrix(*heads, width));
  TRY_STATUS(matrix(qkv, config.widest([](const LayerSpec& l) {
    return l.attn.norm_of_all ? l.attn.qkv() : 0;
  })));
  TRY_STATUS(hidden.size(options.activations, kinds, rows, config.hidden));
  TRY_STATUS(attended.size(options.activations, kinds, rows, width));
  TRY_STATUS(inner.size(options.activations, kinds, rows, inner_width));
  TRY_STATUS(head.size(options.activations, kinds, rows, config.hidden));
  TRY_STATUS(size_experts(config, options, kinds));
  workers.resize(worker_count);
  for (WorkerScratch& worker : workers) {
    TRY_STATUS(worker.hidden.size(options.activations, kinds, kFewRows, config.hidden));
    TRY_STATUS(worker.attended.size(options.activations, kinds, kFewRows, width));
    worker.x.resize(std::size_t{kFewRows} * config.hidden);
    worker.row.resize(std::max({config.hidden, width, inner_width}));
    TRY_STATUS(matrix(worker.unit, std::max(head_dim, 2 * kGateUpUnit)));
  }
  return {};
}

Status Scratch::size_experts(const ModelConfig& config, const ModelOptions& options,
                             ActivationKinds kinds) {
  const std::uint32_t rows = options.rows_max;
  const auto widest = [&](auto of) {
    return config.widest(
        [&](const LayerSpec& l) -> std::uint32_t { return l.ffn.experts ? of(l.ffn.experts) : 0; });
  };
  const std::uint32_t items =
      widest([&](const Experts& e) { return ExpertLists::items_max(e, rows); });
  if (items == 0) return {};
  const std::uint32_t scored = widest([](const Experts&e) { return e.count + 1; }),
                      inner_width = widest([](const Experts&e) { return e.width; });
  TRY(normed, scratch_memory(std::size_t{rows} * config.hidden * sizeof(float)));
  TRY(scores, scratch_memory(std::size_t{rows} * scored * sizeof(float)));
  TRY_STATUS(gathered.size(options.activations, kinds, items, config.hidden));
  return gathered_inner.size(options.activations, kinds, items, inner_width);
}

Model::State::State(ModelConfig c, ModelOptions o, ThreadPool& p, PackedWeights w)
    : config(std::move(c)),
      options(o),
      pool(p),
      weights(std::move(w)),
      linear(linear_kernels(o.isa)),
      vector(vector_kernels(o.isa)),
      attend(attend_kernels(o.isa)),
      encoded(encoded_kernels(o.isa)),
      mass(mass_kernels(o.isa)),
      // Narrow attention is as accurate as activations of 8 bits. With finer activations, or none,
      // f32.
      groups(config, o.isa, weights.kinds.quantized && o.activations == Activations::int8,
             p.size()),
      next_task(config.layers),
      next_seal(config.layers) {
  for (const RopeConfig& rope : config.ropes) ropes.emplace_back(rope);
}

std::span<const std::uint32_t> Model::State::find_finished(const StepRows& step) {
  finished_rows.clear();
  finishes.clear();
  const auto wants = [](const Tap* tap) { return tap != nullptr && tap->wants_states(); };
  if (std::ranges::none_of(step.taps, wants)) return step.logit_rows;
  const KvView& view = step.groups[0];
  auto logit = step.logit_rows.begin();
  for (std::uint32_t s = 0; s < view.sequence_count; ++s) {
    const KvSequenceView& of = view.sequences[s];
    for (std::uint32_t i = 0; i < of.row_count; ++i) {
      const std::uint32_t row = of.first_row + i;
      Finish f{.state = wants(step.taps[s]) ? step.taps[s]->state(of.past + i) : nullptr};
      if (logit != step.logit_rows.end() && *logit == row)
        f.logit = static_cast<std::uint32_t>(logit++ - step.logit_rows.begin());
      if (f.logit == Finish::kNone && f.state == nullptr) continue;
      finished_rows.push_back(row);
      finishes.push_back(f);
    }
  }
  return finished_rows;
}

void Model::State::prepare(const Geometry& geometry, const StepRows& step) {
  for (auto& counter : next_task) counter.store(0, std::memory_order_relaxed);
  for (auto& counter : next_seal) counter.store(0, std::memory_order_relaxed);
  ++steps;
  std::uint32_t end = 0;
  for (const std::uint32_t p : step.positions) end = std::max(end, p + 1);
  for (RopeTable& rope : ropes) rope.cover(end);
  if (!step.adapter_sets.empty()) {
    const auto rows = static_cast<std::uint32_t>(step.tokens.size());
    adapters.size(config, rows, step.adapter_sets);
    for (WorkerScratch& worker : scratch.workers) {
      worker.adapter_inputs.resize(std::size_t{kFewRows} * adapters.input_width);
      worker.adapter_sums.resize(std::size_t{kAdapterRowsAtOnce} * kAdapterColumnsAtOnce);
    }
  }
  groups.prepare(geometry, step);
  grow(scratch.partials, groups.partial_bytes);
  for (WorkerScratch& worker : scratch.workers) grow(worker.attend, groups.scratch_bytes);
}

EncodedPart Model::State::lane_part(EncodedPart part, std::uint32_t layer, std::uint32_t kv_head,
                                    std::uint32_t position) const {
  if (!part.calibration) return part;
  const Attention& attn = config.per_layer[layer].attn;
  const bool keys = part.side == Side::keys;
  part.lane = (layer * attn.kv_heads + kv_head) * 2 + (keys ? 0 : 1);
  if (keys) part.rope = ropes[attn.rope].view();
  part.position = position;
  return part;
}

void Model::State::look_at_seal(const EncodedPart& part, const std::byte* rows,
                                const std::byte* page, SealError::Side& side) {
  const std::uint32_t tokens = part.rows.tokens, dim = part.rows.dim;
  const std::size_t n = std::size_t{tokens} * dim;
  sealed_rows.resize(n + dim);
  read_rows.resize(n);
  decode_page(part, page, part.position, read_rows.data());
  float* const row = sealed_rows.data() + n;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const auto at = [&](std::uint32_t d) {
      return part.side == Side::keys ? std::size_t{d} * tokens + t : std::size_t{t} * dim + d;
    };
    for (std::uint32_t d = 0; d < dim; ++d) {
      std::uint16_t bits;
      std::memcpy(&bits, rows + 2 * at(d), 2);
      row[d] = f16_to_f32(bits);
    }
    to_basis(part.codec->basis(part.side), dim, row);
    for (std::uint32_t d = 0; d < dim; ++d) sealed_rows[at(d)] = row[d];
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double lost = double{sealed_rows[i]} - read_rows[i];
    side.error += lost * lost;
    side.power += double{sealed_rows[i]} * sealed_rows[i];
  }
}

}  // namespace quire
