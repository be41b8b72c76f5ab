// engine/step_costs.h - how long steps take, as a table of five numbers, and a fit of that table to
// steps that were measured. Virtual time (replay/virtual_worker.h) is made of it; `serve --trace`
// records it, and plans estimate times with it.
//
//   StepCostFit fit;
//   StepShape shape;
//   shape.add(96, 512);                    // a prompt's rows 512..607
//   shape.add(1, 1000);                    // an answer's next token
//   fit.add(shape, 0.012);                 // this step took 12 ms
//   fit.costs().seconds(shape);
#pragma once

#include <array>
#include <cstdint>

#include "base/json.h"
#include "base/result.h"

namespace quire {

// What a step computes. Rows that come alone belong to answers, others to prompts.
struct StepShape {
  double prompt_tokens = 0, prompt_reads = 0;  // rows, and the tokens that they see in all
  double answer_tokens = 0, answer_reads = 0;

  void add(std::uint32_t rows, std::uint32_t past) {
    const double reads = static_cast<double>(rows) * (past + (rows + 1) / 2.0);
    (rows > 1 ? prompt_tokens : answer_tokens) += rows;
    (rows > 1 ? prompt_reads : answer_reads) += reads;
  }
};

// In seconds.
struct StepCosts {
  double step = 0;  // of every step
  double prompt_token = 0;
  double prompt_read = 0;  // of a token that a prompt's row sees
  double answer_token = 0;
  double answer_read = 0;

  double seconds(const StepShape& s) const {
    return step + prompt_token * s.prompt_tokens + prompt_read * s.prompt_reads +
           answer_token * s.answer_tokens + answer_read * s.answer_reads;
  }
  bool known() const { return step > 0 || prompt_token > 0 || answer_token > 0; }
};

// {"step_ms", "prompt_token_us", "prompt_read_ns", "answer_token_us", "answer_read_ns"}; what is not
// there is 0. Every number is 0 to 10^9.
Json step_costs_json(const StepCosts& costs);
Result<StepCosts> parse_step_costs(const Json& json);

// Least squares over all steps so far, with no cost below 0. A step counts by how long it took, so
// that the sum of all steps comes out right. Plain data: the engine copies it between steps.
class StepCostFit {
 public:
  void add(const StepShape& shape, double seconds);
  std::uint64_t steps() const { return steps_; }
  StepCosts costs() const;  // all 0: fewer than 8 steps were measured

 private:
  static constexpr std::size_t kTerms = 5;
  std::array<std::array<double, kTerms>, kTerms> products_{};
  std::array<double, kTerms> sums_{};
  std::uint64_t steps_ = 0;
};

}  // namespace quire
