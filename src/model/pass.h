// model/pass.h - one thread's part of one forward pass. Private to model/.
//
// Three ways to share the work, chosen by the number of rows; none of them changes a bit, as every
// row and every output column is computed alike wherever it is computed:
//   few      (decode)   threads split columns; each prepares the few activation rows for itself
//   columns  (batches)  threads split columns of the matrices and rows of everything between, and
//                       meet in between
//   rows     (prefill)  each thread takes its rows through whole layers; they meet only around
//                       attention
// Once the last layer's keys and values are stored only rows whose logits are wanted go on, in a
// second Pass.
#pragma once

#include "model/state.h"

namespace quire {

class Pass {
 public:
  Pass(Model::State& state, const Geometry& geometry, const StepRows& step, float* logits,
       ThreadPool::Lane lane, bool is_tail = false);
  void run();

 private:
  enum class Sharing { few, columns, rows };
  struct Range {
    std::uint32_t begin, end;
  };

  static Sharing sharing_for(std::uint32_t rows, std::uint32_t threads);
  Range share(std::uint32_t count,
              std::uint32_t multiple) const;  // this thread's part of [0, count)
  Range unit_share(std::uint32_t count, std::uint32_t multiple) const;
  void meet_after_rows() const;     // where rows were split and columns come next
  void meet_after_columns() const;  // where columns were split and rows come next

  float* x_row(std::uint32_t row) const;
  void absorb(std::uint32_t row, const std::vector<float>& post_norm);
  void enter(std::uint32_t row, std::uint32_t to_row, const std::vector<float>& norm,
             const ActivationRows& to);
  void encode(const float* from, std::uint32_t row, std::uint32_t first, std::uint32_t count,
              const ActivationRows& to) const;

  std::uint32_t step_row(std::uint32_t row) const { return is_tail_ ? step_.logit_rows[row] : row; }

  void embed();
  void keys_and_values(std::uint32_t layer);
  void attention(std::uint32_t layer);
  void fetch_for(std::uint32_t layer);
  void tap(std::uint32_t layer);
  void tap_moments(std::uint32_t layer, const KvSequenceView& sequence, Tap& tap);
  void project_qkv(std::uint32_t layer, const ActivationRows& in);
  void finish_head(std::uint32_t layer, std::uint32_t head, Range rows);
  void choose_pages(std::uint32_t layer);
  void attend(std::uint32_t layer);
  void seal(std::uint32_t layer);
  void attend_sealed(std::uint32_t layer);
  void feed_forward(std::uint32_t layer);
  void multiply_units(const LayerWeights& w, Range units, const ActivationRows& in,
                      const ActivationRows& inner);
  void project(const PackedMatrix& w, const ActivationRows& in);
  void finish(std::uint32_t last);       // attention and feed-forward of the last layer, logits
  void finish_tail(std::uint32_t last);  // the same, for rows whose logits are wanted
  void logits();

  Model::State& s_;
  const ModelConfig& c_;
  const Geometry& geometry_;
  const StepRows& step_;
  float* logits_;
  const ThreadPool::Lane lane_;
  LaneScratch& own_;
  const bool is_tail_;
  const std::uint32_t row_count_;
  const Sharing sharing_;
  const Range row_phase_;    // rows this thread prepares
  const Range matrix_rows_;  // rows it multiplies
  Fetch fetch_;              // what the next layer's attention reads
};

}  // namespace quire
