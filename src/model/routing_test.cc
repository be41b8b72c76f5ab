#include "model/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

using ::testing::ElementsAre;

std::vector<std::uint32_t> experts_of(const std::vector<ExpertChoice>& choices) {
  std::vector<std::uint32_t> experts;
  for (const ExpertChoice& c : choices) experts.push_back(c.expert);
  return experts;
}

std::vector<ExpertChoice> routed(const Experts& spec, std::vector<float> scores,
                                 std::vector<float> bias = {}) {
  std::vector<ExpertChoice> choices(spec.used);
  route(spec, scores, bias, choices.data());
  return choices;
}

TEST(Route, TiesGoToTheLowerExpertAndChoicesAscend) {
  const Experts spec{.count = 5, .used = 3};
  EXPECT_THAT(experts_of(routed(spec, {1, 2, 2, 2, 2})), ElementsAre(1, 2, 3));
  EXPECT_THAT(experts_of(routed(spec, {3, 0, 0, 0, 4})), ElementsAre(0, 1, 4));
  // A row that is not a number takes the first ones, and stays so.
  const auto broken = routed(spec, {NAN, NAN, NAN, NAN, NAN});
  EXPECT_THAT(experts_of(broken), ElementsAre(0, 1, 2));
  EXPECT_TRUE(std::isnan(broken[0].weight));
}

TEST(Route, WeightsAreOfAllOrOfTheChosen) {
  Experts spec{.count = 3, .used = 2};
  const std::vector<float> scores = {0, std::log(2.0f), std::log(5.0f)};
  EXPECT_NEAR(routed(spec, scores)[0].weight, 2.0 / 8, 1e-6);
  EXPECT_NEAR(routed(spec, scores)[1].weight, 5.0 / 8, 1e-6);
  spec.renormalize = true;
  EXPECT_NEAR(routed(spec, scores)[0].weight, 2.0 / 7, 1e-6);
  spec = {.count = 3, .used = 2, .scores = Experts::Scores::chosen};
  EXPECT_NEAR(routed(spec, scores)[1].weight, 5.0 / 7, 1e-6);
  spec.scale = 2.5f;
  EXPECT_NEAR(routed(spec, scores)[1].weight, 2.5 * 5 / 7, 1e-6);
}

TEST(Route, ABiasCountsInTheChoiceOnly) {
  const Experts spec{.count = 3, .used = 1, .scores = Experts::Scores::sigmoid};
  const auto choice = routed(spec, {0, 1, 2}, {9, 0, 0});
  EXPECT_EQ(choice[0].expert, 0u);
  EXPECT_NEAR(choice[0].weight, 0.5, 1e-6);
}

TEST(Route, GroupsAreChosenByTheirTwoBestOrTheirBest) {
  Experts spec{
      .count = 6, .used = 2, .groups = 3, .groups_used = 1, .scores = Experts::Scores::sigmoid};
  const std::vector<float> scores = {3, -9, 2, 2, 1, 1};
  EXPECT_THAT(experts_of(routed(spec, scores)), ElementsAre(2, 3));
  spec.scores = Experts::Scores::softmax;
  EXPECT_THAT(experts_of(routed(spec, scores)), ElementsAre(0, 1));
}

TEST(ExpertLists, RowsLieByExpertAndBeginEvenly) {
  const Experts spec{.count = 4, .used = 2};
  const std::vector<ExpertChoice> choices = {{1, 0.5f}, {3, 0.25f}, {0, 1}, {3, 2}, {1, 3}, {3, 4}};
  ExpertLists lists;
  lists.make(spec, 3, choices);
  ASSERT_EQ(lists.lists.size(), 3u);
  EXPECT_EQ(lists.lists[2].expert, 3u);
  EXPECT_EQ(lists.lists[2].begin, 16u);
  EXPECT_EQ(lists.lists[2].end, 19u);
  EXPECT_EQ(lists.items[17].row, 1u);
  EXPECT_EQ(lists.items[17].weight, 2.0f);
  EXPECT_EQ(lists.items[lists.lists[1].begin + 1].row, 2u);
  EXPECT_LE(lists.items.size(), ExpertLists::items_max(spec, 3));
}

}  // namespace
}  // namespace quire
