#include "model/state.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"

namespace quire {

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
      // Narrow is as good as activations of 8 bits are; with finer ones, or none, f32.
      groups(config, o.isa, weights.kinds.quantized && o.activations == Activations::int8,
             p.size()),
      next_task(config.layers),
      next_seal(config.layers) {
  for (const RopeConfig& rope : config.ropes) ropes.emplace_back(rope);
}

void Model::State::prepare(const Geometry& geometry, const StepRows& step) {
  for (auto& counter : next_task) counter.store(0, std::memory_order_relaxed);
  for (auto& counter : next_seal) counter.store(0, std::memory_order_relaxed);
  ++steps;
  std::uint32_t end = 0;
  for (const std::uint32_t p : step.positions) end = std::max(end, p + 1);
  for (RopeTable& rope : ropes) rope.cover(end);
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
