// model/device_model.h - the forward pass on a GPU, behind Model. Private to model/.
//
// A step's tokens, positions, block tables and attention items are uploaded in one go; then kernels
// run layer after layer, and logits or their maxima come back: one wait per step. A step may be queued
// behind another one whose maxima are its tokens, before anybody has seen them. Decode steps are
// replayed as CUDA graphs, one per class of batch size (rows are padded; padding is never stored).
// Arithmetic does not depend on the class, the batch or the chunk (kernels/cuda/api.h).
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

  // As Model::forward; a device that fails says so.
  // `serial`: StepPlan::serial.
  Status forward(const Geometry& geometry, std::uint64_t serial, const StepRows& step,
                 float* logits);
  // Waits for a step that was only queued (StepRows::ticket).
  Status finish(std::uint32_t ticket, std::span<BestToken> best);

 private:
  DeviceModel(const CudaDevice& device, const ModelSource& source, ModelOptions options)
      : device_(device),
        config_(device_config(source.config())),
        head_dim_(source.config().head_dim),
        options_(options) {}

  // Where a step's numbers lie in the uploaded memory. Offsets depend on the row class alone, so
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
    bool greedy, merge, decode_only;
    std::uint32_t tiles;  // of the group with the most, rounded up where a graph is to serve others
  };
  // A geometry by its serial and its place: those that no cache keeps have no serial.
  using GraphKey = std::tuple<std::uint64_t, const Geometry*, std::uint32_t, std::uint32_t, bool,
                              bool, std::uint32_t>;

  Status size_buffers();
  Status tune();
  Status cover(std::uint32_t positions);
  void plan(const Geometry& geometry, const StepRows& step);
  Status upload(const StepRows& step, const Step& as);
  Status run(const Geometry& geometry, const Step& step);  // queues every kernel
  Status run_layer(const Geometry& geometry, const Step& step, std::uint32_t layer);
  Status linear(const DeviceMatrix& w, const void* in, void* out, std::uint32_t rows,
                std::uint32_t outputs, std::uint32_t inputs, LinearOutput kind);
  const void* rows_of(const DeviceMatrix& w) const {  // or room for them
    return w.kind.bits ? unpacked_.data() : w.data.data();
  }
  Status check(int error, std::string_view doing = "a forward pass") {
    return cuda_status(device_, error, doing);
  }
  Status start_draws(const Draws& draws);  // before the pass
  Status finish_draws(const StepRows& step, float* logits);
  void forget_graphs();
  Status grow(DeviceBuffer& buffer, std::size_t bytes, std::string_view what);

  const CudaDevice& device_;
  const ModelConfig config_;      // heads as the kernels have them
  const std::uint32_t head_dim_;  // as the model has them
  const ModelOptions options_;
  CudaStream stream_ = nullptr;
  DeviceWeights weights_;
  bool made_up_codes_ = false;  // other numbers than those of the same file as bf16
  std::vector<RopeTable> ropes_;
  std::vector<DeviceBuffer> angles_;  // [context][head_dim], by rope
  std::uint32_t covered_ = 0;         // positions in angles_

  DeviceBuffer x_, tail_x_, hidden_, qkv_, queries_, attended_, y_, inner_, gate_up_, head_in_,
      logits_, best_, partials_, unpacked_;
  // Of a step on its way; there are two at most, and they end in their order. Both are pinned.
  struct Slot {
    std::byte* host = nullptr;  // where its upload is put together
    BestToken* best = nullptr;
    CudaEvent done = nullptr;
  };
  Slot slots_[2];
  std::uint32_t turn_ = 0;  // whose the last step is
  DeviceBuffer draw_scratch_, draw_raw_;
  std::byte* draw_host_ = nullptr;  // pinned; the device reads and writes it
  std::size_t draw_host_bytes_ = 0;
  DrawArgs drawing_{};
  DeviceBuffer meta_;
  std::size_t meta_bytes_ = 0, items_capacity_ = 0, tables_capacity_ = 0;
  std::vector<Group> groups_;
  std::map<GraphKey, CudaGraph> graphs_;
  const std::byte* arena_ = nullptr;  // of the graphs
};

}  // namespace quire
