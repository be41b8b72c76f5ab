// model/pass.h - one thread's part of one forward pass: it walks the layers' specs. Private to model/.
//
// Threads share the work in one of three ways, chosen by the number of rows. The choice changes no
// bit, because every row and every output column is computed in the same way on any thread:
//   few      (decode)   threads split columns; each prepares the few activation rows for itself
//   columns  (batches)  threads split columns of the matrices and rows of everything between, and
//                       meet in between
//   rows     (prefill)  each thread takes its rows through whole layers; they meet only around
//                       attention
// When the last layer's keys and values are stored, only rows whose logits or states are wanted go on,
// in a second Pass.
#pragma once

#include <span>

#include "model/state.h"

namespace quire {

class Pass {
 public:
  Pass(Model::State& state, const Geometry& geometry, const StepRows& step, float* logits,
       ThreadPool::Worker worker, bool is_tail = false);
  void run();

 private:
  enum class Sharing { few, columns, rows };
  struct Range {
    std::uint32_t begin, end;
  };
  struct Layer {
    std::uint32_t index;
    const LayerSpec& spec;
    const PackedWeights::Layer& w;
    const Attention& attn = spec.attn;
  };

  static Sharing sharing_for(std::uint32_t rows, std::uint32_t threads);
  Range share(std::uint32_t count,
              std::uint32_t multiple) const;  // this thread's part of [0, count)
  Range unit_share(std::uint32_t count, std::uint32_t multiple) const;
  void meet_after_rows() const;     // where rows were split and columns come next
  void meet_after_columns() const;  // where columns were split and rows come next

  Layer layer(std::uint32_t index) const {
    return {index, c_.per_layer[index], s_.weights.layers[index]};
  }
  std::uint32_t step_row(std::uint32_t row) const { return is_tail_ ? step_.finished[row] : row; }

  // pass.cc: between the matrices, feed-forward and the ends.
  void embed();
  float* x_row(std::uint32_t row) const;
  const float* normed(const Norm& norm, const std::vector<float>& weight, const float* row,
                      std::uint32_t n, float* to) const;
  void absorb(std::uint32_t row, const Norm& post, const std::vector<float>& weight);
  void enter(std::uint32_t row, std::uint32_t to_row, const Norm& pre,
             const std::vector<float>& weight, const ActivationRows& to);
  void encode(const float* from, std::uint32_t row, std::uint32_t first, std::uint32_t count,
              const ActivationRows& to) const;
  void project(const Layer& l, const PackedMatrix& w, const std::vector<float>& bias,
               const ActivationRows& in, Adapted linear);
  void feed_forward(const Layer& l);
  void multiply_units(const FeedForward& ffn, const PackedPair& w, const float* bias, Range rows,
                      Range units, const ActivationRows& in, const ActivationRows& inner,
                      const Layer* adapted = nullptr);
  void finish(const Layer& last);       // attention and feed-forward of the last layer, logits
  void finish_tail(const Layer& last);  // finish(), where not all rows are finished
  void logits();

  // pass_adapters.cc
  void find_adapted();
  float* adapter_inputs() const;
  void keep(std::uint32_t row, const float* from, std::uint32_t count) const;
  void keep_inner(std::uint32_t row, std::uint32_t first, const float* from,
                  std::uint32_t count) const;
  template <class F>
  void each_pair(const Layer& l, std::span<const Adapted> linears, F f) const;
  void shrink(const Layer& l, std::span<const Adapted> linears, float* from, std::uint32_t stride);
  void expand(const Layer& l, std::span<const Adapted> linears, Adapted which, std::uint32_t first,
              std::uint32_t count, float* out, std::size_t stride);

  // pass_experts.cc
  void mix_experts(const Layer& l);
  void score_experts(const Layer& l);
  void choose_experts(const Layer& l);
  void encode_for_experts(const Layer& l);
  void multiply_experts(const Layer& l);
  void add_experts(const Layer& l);
  float shared_weight(const Layer& l, std::uint32_t row) const;

  // pass_latent.cc
  void project_latent(const Layer& l, const ActivationRows& in);
  void store_latent(const Layer& l, std::uint32_t row);
  void absorb_head(const Layer& l, std::uint32_t head, const ActivationRows& ranks);
  void expand_latent(const Layer& l, const ActivationRows& out);

  // Linear layers that have the same input.
  static constexpr Adapted kQkv[] = {Adapted::q, Adapted::k, Adapted::v}, kOut[] = {Adapted::out},
                           kGateUp[] = {Adapted::gate, Adapted::up}, kDown[] = {Adapted::down};

  // pass_attention.cc
  void keys_and_values(const Layer& l);
  void wait_for_gates(std::uint32_t layer);
  void project_qkv(const Layer& l, const ActivationRows& in);
  void project_then_norm(const Layer& l, const ActivationRows& in);
  void multiply_head(const Layer& l, std::uint32_t head, const ActivationRows& in, float* out,
                     std::size_t stride);
  void finish_head(const Layer& l, std::uint32_t head, Range rows, float* first,
                   std::size_t stride);
  void choose_pages(const Layer& l);
  void seal(const Layer& l);
  void attention(const Layer& l);
  void attend(const Layer& l);
  void attend_sealed(const Layer& l, const GroupStep& group, const AttendStep& as_rows);
  SealedStep sealed_step(const Layer& l, const GroupStep& group, const AttendStep& as_rows) const;
  bool attend_streamed(const Layer& l, const AttendStep& as_rows);  // pass_streamed.cc
  AttendStep attend_step(const Layer& l, const KvView& view, const AttendShape& shape,
                         std::uint32_t index) const;
  void fetch_for(std::uint32_t layer);
  void tap(const Layer& l);
  void tap_moments(const Layer& l, const KvSequenceView& sequence, Tap& tap);

  Model::State& s_;
  Scratch& scratch_;
  const ModelConfig& c_;
  const Geometry& geometry_;
  const StepRows& step_;
  float* logits_;
  const ThreadPool::Worker worker_;
  WorkerScratch& own_;
  const bool is_tail_;
  const std::uint32_t row_count_;
  const Sharing sharing_;
  const Range row_phase_;    // rows this thread prepares
  const Range matrix_rows_;  // rows it multiplies
  Fetch fetch_;              // what the next layer's attention reads
};

}  // namespace quire
