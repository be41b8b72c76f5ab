#include "lab/formats/quality.h"

#include <gtest/gtest.h>

#include "engine/testing.h"
#include "lab/formats/probe.h"

namespace quire {
namespace {

std::vector<TokenId> text(std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<TokenId>(i * i % 251);
  return tokens;
}

StoragePolicy way(const char* name) { return find_format(name).value(); }

TEST(Quality, FewerBitsDivergeMoreAndTheReferenceNotAtAll) {
  TinyRuntime runtime({.layers = 3, .head_dim = 64}, {.kv_format = "f16"});
  const auto scores = compare_storage(
      *runtime,
      {.reference = way("f16"),
       .ways = {way("f16"), way("int8"), way("hadamard-int4"), way("hadamard-int2")},
       .window = 150},
      text(400));
  ASSERT_TRUE(scores.ok()) << scores.error().message;
  const auto& s = scores.value();
  EXPECT_EQ(s[0].kl_mean, 0);
  EXPECT_EQ(s[0].same_top, 1);
  EXPECT_EQ(s[0].perplexity, s[0].perplexity_reference);
  EXPECT_EQ(s[0].positions, 149u + 149u + 99u);
  EXPECT_GT(s[1].kl_mean, 0);
  EXPECT_LT(4 * s[1].kl_mean, s[2].kl_mean);
  EXPECT_LT(4 * s[2].kl_mean, s[3].kl_mean);
  EXPECT_GT(s[3].kl_99, s[3].kl_mean);
}

// The layers of a plan that cost nothing are narrowed first, whatever they are called.
TEST(Probe, NarrowsWhatCostsLeast) {
  Probe p;
  p.keys = {find_codec("int8").value(), find_codec("hadamard-int4").value()};
  p.values = {find_codec("hadamard-int4").value(), find_codec("hadamard-int2").value()};
  p.key_cost = {{0, 5}, {0, 1}};
  p.value_cost = {{0, 9}, {0, 2}};
  p.key_bytes = {{100, 50}, {100, 50}};
  p.value_bytes = {{50, 25}, {50, 25}};
  const auto names = [&](double bytes) {
    std::vector<std::string> all;
    for (const Format* f : choose_plan(p, bytes)) all.emplace_back(f->name);
    return all;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(1000), (Names{"int8/hadamard-int4", "int8/hadamard-int4"}));
  EXPECT_EQ(names(299), (Names{"int8/hadamard-int4", "hadamard-int4"}));
  EXPECT_EQ(names(249), (Names{"int8/hadamard-int4", "hadamard-int4/hadamard-int2"}));
  EXPECT_EQ(names(0), (Names{"hadamard-int4/hadamard-int2", "hadamard-int4/hadamard-int2"}));
}

TEST(Probe, PlansAreReadBackAndOthersRefused) {
  const std::vector<const Format*> plan = {find_format("int8/q4_0").value(),
                                           find_format("kivi-2").value()};
  EXPECT_EQ(parse_plan(plan_json(plan)).value(), plan);
  EXPECT_FALSE(parse_plan(Json::array()).ok());
  EXPECT_FALSE(
      parse_plan({{"quire_kv_plan", 1}, {"layers", {{{"k", "int9"}, {"v", "f16"}}}}}).ok());
  EXPECT_FALSE(parse_plan({{"quire_kv_plan", 2}, {"layers", Json::array()}}).ok());
}

TEST(Probe, MeasuresEveryLayerAndItsPlanRuns) {
  TinyRuntime runtime({.layers = 3, .head_dim = 64}, {.kv_format = "f16"});
  const auto probe =
      probe_storage(*runtime,
                    {.keys = {find_codec("int8").value(), find_codec("q4_0").value()},
                     .values = {find_codec("f16").value(), find_codec("q4_0").value()},
                     .window = 100},
                    text(200));
  ASSERT_TRUE(probe.ok()) << probe.error().message;
  for (std::uint32_t l = 0; l < 3; ++l) {
    EXPECT_GT(probe.value().key_cost[l][1], probe.value().key_cost[l][0]);
    EXPECT_EQ(probe.value().value_cost[l][0], 0);
    EXPECT_GT(probe.value().value_cost[l][1], 0);
  }
  StoragePolicy plan = find_format("f16").value();
  plan.by_layer = choose_plan(probe.value(), 500);
  ASSERT_TRUE(runtime->check_storage(plan).ok());
  const auto scores = compare_storage(
      *runtime, {.reference = way("f16"), .ways = {plan}, .window = 100}, text(200));
  EXPECT_GT(scores.value()[0].kl_mean, 0);
}

}  // namespace
}  // namespace quire
