#include "model/scratch.h"

#include <algorithm>

#include "base/check.h"

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

Status Site::size(Activations mode, ActivationKinds kinds, std::uint32_t rows,
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
  fine = view;
  fine.mode = Activations::int16;
  return {};
}

Status Scratch::size(const ModelConfig& config, const ModelOptions& options, ActivationKinds kinds,
                     std::uint32_t worker_count) {
  const std::uint32_t rows = options.rows_max;
  const std::uint32_t width = config.widest([](const LayerSpec&l) { return l.attn.queries(); }),
                      inner_width = config.widest([](const LayerSpec&l) { return l.ffn.width; }),
                      head_dim = config.widest([](const LayerSpec&l) { return l.attn.key_dim; });
  const auto matrix = [&](HugeBuffer& to, std::uint32_t columns) -> Status {
    TRY(to, scratch_memory(std::size_t{rows} * columns * sizeof(float)));
    return {};
  };
  for (HugeBuffer* stream : {&x, &y, &tail_x}) TRY_STATUS(matrix(*stream, config.hidden));
  for (HugeBuffer* heads : {&queries, &attended_rows}) TRY_STATUS(matrix(*heads, width));
  TRY_STATUS(hidden.size(options.activations, kinds, rows, config.hidden));
  TRY_STATUS(attended.size(options.activations, kinds, rows, width));
  TRY_STATUS(inner.size(options.activations, kinds, rows, inner_width));
  TRY_STATUS(head.size(options.activations, kinds, rows, config.hidden));
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

}  // namespace quire
