// engine/scoring.h - computes the scores of retention methods for one sequence, a part at a time.
//
// Scores of a long prompt take as long as many steps. A part is some layers, or for methods that
// weigh values (`critical-`) some slots of a layer. Parts are computed by all threads. Each layer
// and each slot is computed by itself, so the scores do not depend on how the work was cut.
//
//   Scoring scoring({&method, 1});
//   bool done = false;
//   while (!done) TRY(done, scoring.some(runtime, s, observer, operations));   // s stays as it is
//   std::vector<LaneScoring> scored = scoring.take();                          // by method
//
// A copy goes on where the original stands.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/observer.h"

namespace quire {

// The projection behind attention of one layer, as floats: what a value adds to the layer's output.
class OutputWeights {
 public:
  static Result<std::shared_ptr<const OutputWeights>> read(const Runtime& runtime,
                                                           std::uint32_t layer);
  // Mean over the query heads of one KV head of the sum of magnitudes that a value adds.
  float norm(std::uint32_t kv_head, std::span<const float> value,
             std::vector<float>& scratch) const;

 private:
  std::uint32_t hidden_ = 0, head_dim_ = 0, group_ = 1;
  std::vector<float> columns_;  // [input][output]
};

class Scoring {
 public:
  // The methods must look at the same number of last queries.
  explicit Scoring(std::span<const RetainMethod> methods);

  // Does about this many operations and takes them from the number. True: all is done.
  Result<bool> some(Runtime& runtime, const Sequence& s, Observer& observer, double& operations);
  std::vector<LaneScoring> take();

 private:
  struct Piece {  // a layer under a method
    std::vector<float> scores, weights;
    std::vector<std::uint32_t> slots;  // by head
  };

  Status add_norms(Runtime& runtime, const Sequence& s, const Observer& observer,
                   double& operations);
  void score_layer(const Runtime& runtime, const Sequence& s, const Observer& observer,
                   std::uint32_t index);

  std::vector<RetainMethod> methods_;
  Signal needs_ = Signal::none;
  std::uint32_t kv_heads_ = 1;
  std::vector<Piece> parts_;                     // [method * layers + layer index]
  std::uint32_t layer_ = 0;                      // layers before it are scored
  std::vector<std::vector<float>> norms_;        // by lane, of the slots so far
  std::uint32_t lane_ = 0;                       // lanes before it have all norms
  std::shared_ptr<const OutputWeights> output_;  // of the lane's layer
  std::uint32_t output_layer_ = 0;
};

// About what a row of a step costs, in operations of plain code such as Scoring's.
double row_operations(const ModelConfig& config);

}  // namespace quire
