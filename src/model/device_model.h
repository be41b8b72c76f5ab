// model/device_model.h - the forward pass on a GPU, behind Model. Private to model/.
//
// A step's tokens, positions, block tables and attention items are uploaded in one copy. Then
// kernels run layer after layer, and logits or best tokens come back: one wait per step. A step may
// be queued behind another one whose best tokens it reads, before the host knows them. Decode steps
// are replayed as CUDA graphs, one per class of batch size (rows are padded; padding is never
// stored). Arithmetic does not depend on the class, the batch or the chunk (kernels/cuda/api.h).
//
//   TRY(auto device, DeviceModel::load(source, {.rows_max = 8192}));
//   TRY_STATUS(device->forward(geometry, step, logits));
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "kernels/cuda/plan.h"
#include "kernels/storage.h"
#include "model/device_weights.h"
#include "model/model.h"
#include "model/rope.h"

namespace quire {

class DeviceModel {
 public:
  static Result<std::unique_ptr<DeviceModel>> load(const ModelSource& source, ModelOptions options);
  ~DeviceModel();

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  std::uint64_t weight_bytes() const { return weights_.bytes; }
  bool packed() const { return weights_.unpacked_bytes > 0; }  // any of them
  const CudaDevice& device() const { return device_; }
  CudaStream stream() const { return stream_; }
  std::uint64_t numerics_id() const;

  // Whether the kernels know how to store keys and values in this way.
  Status check_storage(const StoragePolicy& storage, const Geometry& geometry) const;

  // Like Model::forward, but returns an error if the device fails. `serial` is StepPlan::serial.
  Status forward(const Geometry& geometry, std::uint64_t serial, const StepRows& step,
                 float* logits);
  // Waits for a step that was only queued (StepRows::ticket).
  Status finish(std::uint32_t ticket, std::span<BestToken> best);
  // Marks of rows whose keys or values are not finite, or empty. Of a completed step, or, without a
  // ticket, of the last step.
  std::span<const std::uint32_t> broken(std::uint32_t ticket) const {
    return slots_[ticket].broken;
  }
  std::span<const std::uint32_t> broken() const { return broken(turn_); }

 private:
  DeviceModel(const CudaDevice& device, const ModelSource& source, ModelOptions options)
      : device_(device),
        model_(source.config()),
        config_(device_config(model_)),
        options_(options) {}

  // Where a step's numbers lie in the uploaded memory. Offsets depend only on the row class, so
  // that a captured graph finds them again.
  struct Group {
    CudaKvFormat format = CudaKvFormat::bf16;
    bool attended = true;  // rows beside a sealed group are read with that
    CudaPlan plan;
    std::uint32_t *tables = nullptr, *row_tables = nullptr;  // on the device
    AttendItem *items = nullptr, *tiles = nullptr;
    SealPair* seals = nullptr;
  };
  struct Step {
    std::uint32_t rows, logit_rows;  // as run, padding included
    bool greedy, logprobs, merge, decode_only;
    std::uint32_t tiles;  // of the group with the most, rounded up where a graph is to serve others
    // Null for steps whose rows all have logits: broken rows then show in the logits. Pinned.
    std::uint32_t* broken = nullptr;
  };
  // A geometry by its serial and its address. Geometries outside a cache have no serial.
  using GraphKey = std::tuple<std::uint64_t, const Geometry*, std::uint32_t, std::uint32_t, bool,
                              bool, bool, std::uint32_t>;

  // One layer of a step: what it computes, and where its pages lie within a block.
  struct Layer {
    std::uint32_t index;
    const LayerSpec& spec;
    const DeviceWeights::Layer& w;
    const Group& group;
    const LayerGroup &shape, &row_shape;
    std::uint32_t group_index, row_group_index;
    std::uint64_t page_bytes, offset, row_page_bytes, row_offset;
  };

  Status size_buffers();
  Status tune();
  Status cover(std::uint32_t positions);
  void plan(const Geometry& geometry, const StepRows& step);
  Status upload(const StepRows& step, const Step& as);
  Status run_or_replay(const Geometry& geometry, std::uint64_t serial, const Step& step);

  // device_layer.cc: every kernel of a step is queued.
  Status run(const Geometry& geometry, const Step& step);
  Layer layer(const Geometry& geometry, std::uint32_t index) const;
  Status run_layer(const Layer& l, const Step& step);
  Status keys_and_values(const Layer& l, const Step& step);
  Status attend(const Layer& l, const Step& step);
  Status feed_forward(const Layer& l, std::uint32_t rows);
  // x += y, normalized if there is a norm after it; `to` = norm of x.
  Status add_norm(float* x, const void* y, const DeviceBuffer* post, const Norm& pre,
                  const DeviceBuffer& weight, void* to, std::uint32_t rows);
  LinearArgs product(const DeviceMatrix& w, const void* in, void* out, std::uint32_t rows,
                     LinearOutput kind) const;
  Status linear(const DeviceMatrix& w, const void* in, void* out, std::uint32_t rows,
                LinearOutput kind);
  const void* rows_of(const DeviceMatrix& w) const {  // or room for them
    return w.kind.bits ? unpacked_.data() : w.data.data();
  }
  const DeviceMatrix& head() const {
    return config_.tied_head ? weights_.embedding : weights_.head;
  }
  const std::uint32_t* uploaded(std::size_t offset) const {
    return reinterpret_cast<const std::uint32_t*>(meta_.data() + offset);
  }
  Status check(int error, std::string_view doing = "a forward pass") {
    return cuda_status(device_, error, doing);
  }
  Status start_draws(const Draws& draws);  // before the pass
  Status finish_draws(const StepRows& step, float* logits);
  void forget_graphs();
  Status grow(DeviceBuffer& buffer, std::size_t bytes, std::string_view what);

  const CudaDevice& device_;
  const ModelConfig model_, config_;  // heads as the model has them, and as the kernels do
  const ModelOptions options_;
  CudaStream stream_ = nullptr;
  DeviceWeights weights_;
  bool made_up_codes_ = false;  // other numbers than those of the same file as bf16
  std::vector<RopeTable> ropes_;
  std::vector<DeviceBuffer> angles_;  // [context][head_dim], by rope
  std::uint32_t covered_ = 0;         // positions in angles_

  DeviceBuffer x_, tail_x_, hidden_, qkv_, queries_, attended_, y_, inner_, gate_up_, head_in_,
      logits_, best_, partials_, unpacked_;
  // Buffers of a step in flight. At most two steps are in flight; they end in order. Pinned memory.
  struct Slot {
    DeviceBuffer host;  // where its upload is put together
    DeviceBuffer best;
    CudaEvent done = nullptr;
    std::span<const std::uint32_t> broken;  // by row, or empty
  };
  Slot slots_[2];
  std::uint32_t turn_ = 0;  // whose the last step is
  DeviceBuffer draw_scratch_, draw_raw_;
  DeviceBuffer draw_host_;  // pinned; the device reads and writes it
  DrawArgs drawing_{};
  DeviceBuffer meta_;
  std::size_t meta_bytes_ = 0, items_capacity_ = 0, tables_capacity_ = 0;
  std::vector<Group> groups_;
  std::map<GraphKey, CudaGraph> graphs_;
  const std::byte* arena_ = nullptr;  // of the graphs
};

}  // namespace quire
