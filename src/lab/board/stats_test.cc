#include "lab/board/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {
using testing::HasSubstr;

const Task& task_with(Metric metric) {
  for (const Task& t : suite_tasks())
    if (t.metric == metric) return t;
  return suite_tasks()[0];
}

TEST(Score, LikelihoodIsMinusTheMeanOfWhatIsScored) {
  const Sample s{{}, {{.candidates = {{1, 2, 3}}, .skip = 1}}};
  const std::vector<Reply> replies = {{{{9, 2, 4}}, {}, {}}};
  EXPECT_DOUBLE_EQ(score_replies(task_with(Metric::likelihood), s, replies, replies), -3);
}

TEST(Score, AccuracyCountsBestTokensAfterTheWarmUp) {
  const Sample s{{}, {{.candidates = {{5, 6, 7, 8}}, .skip = 2}}};
  const std::vector<Reply> replies = {{{{0, 0, 0, 0}}, {5, 6, 7, 0}, {}}};
  EXPECT_DOUBLE_EQ(score_replies(task_with(Metric::accuracy), s, replies, replies), 0.5);
}

TEST(Score, AgreementIsWithTheWholeCacheWhateverTheText) {
  const Sample s{{}, {{.candidates = {{5, 6}}}}};
  const std::vector<Reply> full = {{{{0, 0}}, {1, 2}, {}}}, other = {{{{0, 0}}, {1, 6}, {}}};
  EXPECT_DOUBLE_EQ(score_replies(task_with(Metric::agreement), s, full, full), 1);
  EXPECT_DOUBLE_EQ(score_replies(task_with(Metric::agreement), s, other, full), 0.5);
}

TEST(Score, RankingWantsTheRightCandidateStrictlyFirst) {
  const Sample s{{}, {{.candidates = {{1}, {2}}, .right = 1}, {.candidates = {{1}, {2}}}}};
  const std::vector<Reply> replies = {{{{2}, {1}}, {}, {}}, {{{1}, {1}}, {}, {}}};
  EXPECT_DOUBLE_EQ(score_replies(task_with(Metric::ranking), s, replies, replies), 0.5);
}

TEST(PairedDifference, IsZeroWideWhenEverySampleDiffersAlike) {
  const std::vector<double> a = {0.1, 0.9, 0.4}, b = {0.0, 0.8, 0.3};
  const Interval d = paired_difference(a, b, 1);
  EXPECT_NEAR(d.low, 0.1, 1e-12);
  EXPECT_NEAR(d.high, 0.1, 1e-12);
}

TEST(PairedDifference, CoversTheTruthAboutNineteenTimesInTwenty) {
  Random random(4);
  int covered = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> a(60), b(60);
    for (std::size_t i = 0; i < 60; ++i) {
      const double hard = random.unit();  // shared by both: pairing takes it out
      a[i] = hard + 0.3 * random.unit() + 0.1;
      b[i] = hard + 0.3 * random.unit();
    }
    const Interval d = paired_difference(a, b, static_cast<std::uint64_t>(trial));
    EXPECT_LT(d.high - d.low, 0.15);
    covered += d.low <= 0.1 && 0.1 <= d.high;
  }
  EXPECT_GE(covered, 270);
  EXPECT_LE(covered, 297);
}

TEST(PairedDifference, IsTheSameForTheSameSeed) {
  const std::vector<double> a = {1, 0, 1, 1, 0, 1}, b = {0, 0, 1, 0, 0, 1};
  EXPECT_EQ(paired_difference(a, b, 3).low, paired_difference(a, b, 3).low);
  EXPECT_NEAR(paired_difference(a, b, 3).mean, 2.0 / 6, 1e-12);
}

struct Given {
  double full, none, random, oracle;
  const char* why;
};

TEST(Gate, SaysWhyATaskMeansNothing) {
  for (const Given& g :
       {Given{0.95, 0.1, 0.4, 0.95, ""}, Given{0.8, 0.1, 0.4, 0.8, "whole cache"},
        Given{0.95, 0.4, 0.4, 0.95, "no context"}, Given{0.95, 0.1, 0.8, 0.95, "random"},
        Given{0.95, 0.1, 0.4, 0.7, "oracle"}}) {
    const std::vector<double> full = {g.full}, none = {g.none}, random = {g.random},
                              oracle = {g.oracle};
    const Gate passed = gate(Metric::ranking, {full, none, random, oracle}, 0.1);
    EXPECT_EQ(passed.open, *g.why == 0);
    EXPECT_THAT(passed.why, HasSubstr(g.why));
  }
  const std::vector<double> same = {-2.0}, better = {-1.9};
  EXPECT_FALSE(gate(Metric::likelihood, {same, same, {}, {}}, 0).open);
  EXPECT_TRUE(gate(Metric::likelihood, {better, same, {}, {}}, 0).open);
}

TEST(Normalized, IsOneForTheWholeCacheAndZeroForNone) {
  EXPECT_DOUBLE_EQ(normalized(-2, -2, -3), 1);
  EXPECT_DOUBLE_EQ(normalized(-3, -2, -3), 0);
  EXPECT_DOUBLE_EQ(normalized(-4, -2, -3), -1);  // worse than no context is possible
  EXPECT_DOUBLE_EQ(normalized(1, 2, 2), 0);
}

}  // namespace
}  // namespace quire
