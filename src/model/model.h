// model/model.h - a model in the CPU's memory: packed weights, and the forward pass over a step's rows.
// CpuExecutor (model/cpu_executor.h) drives it; the GPU's counterpart is model/device_model.h.
//
// It sees the cache only through views (kernels/kv_view.h).
//
//   TRY(ModelSource source, ModelSource::open(path));
//   TRY(std::unique_ptr<Model> model, Model::load(source, pool, {}));
//   model->forward(geometry, {.tokens = ids, .positions = at, .groups = views, .logit_rows = last}, to);
//
// Same answer: a row's result depends on its token, its position and what its sequence holds, never
// on the other rows, the chunking or the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "base/token.h"
#include "kernels/draw.h"
#include "kernels/encoded.h"
#include "kernels/geometry.h"
#include "kernels/kv_view.h"
#include "kernels/linear.h"
#include "kernels/storage.h"
#include "model/config.h"
#include "model/executor.h"
#include "model/page_reads.h"
#include "model/tap.h"
#include "model/weights_source.h"

namespace quire {

// How a GPU stores weights: decoded to bf16, or packed as the codes of the file
// (model/weight_codes.h). Packed weights of 4 bits take a third of the memory. Both mean the same
// numbers and give the same bits. `automatic` packs weights that would not fit otherwise.
enum class WeightStorage : std::uint8_t { automatic, bf16, packed };

struct ModelOptions {
  DeviceKind device = DeviceKind::cpu;
  Isa isa = best_isa();
  Activations activations = Activations::int8;
  std::uint32_t rows_max = 512;  // rows of one step; scratch is sized by it
  bool fast = false;             // on a GPU: bits may depend on how many rows a step has
  WeightStorage weights = WeightStorage::automatic;
};

// One step: rows of all sequences one after the other. `groups` has one view per layer group of the
// geometry in use; their sequences lie in the same order and cover the same rows.
struct StepRows {
  std::span<const TokenId> tokens;  // on a device also kBestOfRow | a row of the step before
  std::span<const std::uint32_t> positions;
  std::span<const KvView> groups;
  std::span<const std::uint32_t> logit_rows;  // rows whose logits are wanted
  // Rows that go through the last layer. Model::forward() finds them: those of `logit_rows`, and those
  // whose state a tap wants.
  std::span<const std::uint32_t> finished = {};
  std::uint32_t last_layer = 0xffffffffu;  // keys and values up to this one; all others stay
  bool logprobs = true;                    // of the best tokens
  BestToken* greedy = nullptr;  // where the best token of each such row goes, instead of its logits
  // On a device, with `greedy`: the step is queued and this names it; DeviceModel::finish() waits for it.
  std::uint32_t* ticket = nullptr;
  // On a device, instead of `greedy`: what to draw, and where the results go. Rows that want their
  // logits get them.
  const Draws* draws = nullptr;
  Drawn* drawn = nullptr;
  std::span<Tap* const> taps = {};  // by sequence, null where nobody asks; or empty
  // By sequence, null where everything is read; or empty. Not on a device.
  std::span<const PageReads* const> reads = {};
  // By sequence, null: everything is there; or empty. Not on a device.
  std::span<LayerGate* const> gates = {};
  ColdBlocks* cold = nullptr;  // of the only sequence. Not on a device.
  const std::function<void(std::uint32_t layer)>* sealed = nullptr;
  // Set to 1 for sequences whose gate did not open in time, or whose cold blocks cannot be had; as long
  // as `gates`, or 1.
  std::span<std::uint8_t> dropped = {};
  // Set to 1 for rows with keys or values that are not finite or too large; as long as `tokens`, or
  // empty.
  std::span<std::uint8_t> broken = {};
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(const ModelSource& source, ThreadPool& pool,
                                             ModelOptions options);
  ~Model();

  const ModelConfig& config() const;
  const ModelOptions& options() const;
  std::uint64_t weight_bytes() const;  // in memory

  // The cache geometry of this model under a storage policy.
  Geometry geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const;

  // Identifies the arithmetic: two runs with equal ids, weights and tokens give equal bits. All
  // instruction sets give the same bits, so they have the same id.
  std::uint64_t numerics_id() const;

  // Writes K/V of every row through the views, then logits [logit_rows][vocabulary]. The geometry
  // is that of `groups`.
  void forward(const Geometry& geometry, const StepRows& step, float* logits);

  // These are PageWork (model/executor.h), between steps.
  void add_mass(const Geometry& geometry, const TapSequence& sequence, const Tap& tap,
                const MassAsk& ask, std::span<float* const> out);
  void rotate_keys(std::uint32_t layer, std::int32_t delta, std::uint32_t rows, float* keys);
  std::span<const double> rotation(std::uint32_t layer) const;

  EncodedPart sealed_part(const Geometry& geometry, std::uint32_t layer, std::uint32_t kv_head,
                          Side side, std::uint32_t position) const;
  RopeView rope(std::uint32_t layer) const;

  const SealError& seal_error() const;  // since the start; between steps

  struct State;  // model/state.h; private to model/

 private:
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The geometry of a configuration without loading it (for plans).
Geometry make_geometry(const ModelConfig& config, std::uint32_t tokens_per_block,
                       const StoragePolicy& policy);

}  // namespace quire
