#include "engine/step_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

// A cost, its name on the wire and what it is multiplied by there.
struct CostField {
  const char* name;
  double StepCosts::*cost;
  double unit;
};
constexpr CostField kCostFields[] = {{"step_ms", &StepCosts::step, 1e3},
                                     {"prompt_token_us", &StepCosts::prompt_token, 1e6},
                                     {"prompt_read_ns", &StepCosts::prompt_read, 1e9},
                                     {"answer_token_us", &StepCosts::answer_token, 1e6},
                                     {"answer_read_ns", &StepCosts::answer_read, 1e9}};

}  // namespace

Json step_costs_json(const StepCosts& costs) {
  Json json = Json::object();
  for (const CostField& f : kCostFields) json[f.name] = costs.*f.cost * f.unit;
  return json;
}

Result<StepCosts> parse_step_costs(const Json& json) {
  if (!json.is_object()) return Error{Code::invalid, "costs are not a JSON object"};
  StepCosts costs;
  for (const CostField& f : kCostFields) {
    const auto at = json.find(f.name);
    if (at == json.end()) continue;
    const double value = at->is_number() ? at->get<double>() : -1;
    if (!(value >= 0 && value <= 1e9))
      return Error{Code::invalid, fmt::format("'{}' is not a number from 0 to 10^9", f.name)};
    costs.*f.cost = value / f.unit;
  }
  if (!costs.known())
    return Error{Code::invalid, "costs name none of step_ms, prompt_token_us and answer_token_us"};
  return costs;
}

void StepCostFit::add(const StepShape& s, double seconds) {
  if (!(seconds > 0)) return;
  const std::array<double, kTerms> terms = {1, s.prompt_tokens, s.prompt_reads, s.answer_tokens,
                                            s.answer_reads};
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) products_[i][j] += terms[i] * terms[j] / seconds;
    sums_[i] += terms[i];
  }
  ++steps_;
}

// Coordinate descent on terms that are scaled to equal size; a term that would be negative stays 0.
StepCosts StepCostFit::costs() const {
  StepCosts costs;
  if (steps_ < 8) return costs;
  std::array<double, kTerms> scale{}, found{};
  for (std::size_t i = 0; i < kTerms; ++i)
    scale[i] = products_[i][i] > 0 ? 1 / std::sqrt(products_[i][i]) : 0;
  for (int round = 0; round < 2000; ++round)
    for (std::size_t i = 0; i < kTerms; ++i) {
      double rest = sums_[i] * scale[i];
      for (std::size_t j = 0; j < kTerms; ++j)
        if (j != i) rest -= products_[i][j] * scale[i] * scale[j] * found[j];
      found[i] = std::max(0.0, scale[i] > 0 ? rest : 0.0);
    }
  for (std::size_t i = 0; i < kTerms; ++i) costs.*kCostFields[i].cost = found[i] * scale[i];
  return costs;
}

}  // namespace quire
