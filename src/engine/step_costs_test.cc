#include "engine/step_costs.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace quire {
namespace {

StepShape some_step(Random& random) {
  StepShape shape;
  for (std::uint64_t n = random.below(16); n-- > 0;)
    shape.add(1, static_cast<std::uint32_t>(random.below(4000)));
  if (random.chance(0.4) || shape.answer_tokens == 0)
    shape.add(2 + static_cast<std::uint32_t>(random.below(500)),
              static_cast<std::uint32_t>(random.below(4000)));
  return shape;
}

TEST(StepCosts, AFitFindsWhatStepsAreMadeOf) {
  const StepCosts real{.step = 3e-3,
                       .prompt_token = 4e-4,
                       .prompt_read = 2e-8,
                       .answer_token = 6e-4,
                       .answer_read = 1e-7};
  Random random(3);
  StepCostFit fit;
  EXPECT_FALSE(fit.costs().known());
  for (int i = 0; i < 3000; ++i) {
    const StepShape shape = some_step(random);
    fit.add(shape, real.seconds(shape) * (0.8 + 0.4 * random.unit()));
  }
  const StepCosts found = fit.costs();
  double sum = 0, wanted = 0;
  for (int i = 0; i < 1000; ++i) {
    const StepShape shape = some_step(random);
    EXPECT_NEAR(found.seconds(shape), real.seconds(shape), 0.1 * real.seconds(shape));
    sum += found.seconds(shape);
    wanted += real.seconds(shape);
  }
  EXPECT_NEAR(sum / wanted, 1, 0.03);
}

TEST(StepCosts, NoCostIsNegative) {
  Random random(4);
  StepCostFit fit;
  for (int i = 0; i < 500; ++i) {  // steps that get cheaper the longer the answers are
    const StepShape shape = some_step(random);
    fit.add(shape, 1e-3 + 1 / (1 + shape.answer_reads));
  }
  const Json costs = step_costs_json(fit.costs());
  for (const auto& [name, value] : costs.items()) EXPECT_GE(value.get<double>(), 0) << name;
}

TEST(StepCosts, ATableIsReadBackAndWrongOnesAreRefused) {
  const StepCosts costs{.step = 5e-3, .prompt_token = 5e-5, .answer_read = 2e-8};
  const auto read = parse_step_costs(step_costs_json(costs));
  ASSERT_TRUE(read.ok());
  EXPECT_DOUBLE_EQ(read.value().answer_read, costs.answer_read);
  for (const char* bad :
       {"[]", "{}", R"({"step_ms":-1})", R"({"step_ms":"1"})", R"({"step_ms":1e300})"})
    EXPECT_FALSE(parse_step_costs(Json::parse(bad)).ok()) << bad;
}

}  // namespace
}  // namespace quire
