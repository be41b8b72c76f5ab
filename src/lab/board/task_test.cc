#include "lab/board/task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "lab/board/testing.h"

namespace quire {
namespace {

template <class Check>
void for_all_samples(Check check) {
  const Vocabulary v = toy_vocabulary();
  for (const Task& task : suite_tasks())
    for (const Level& level : task.levels)
      for (std::uint32_t i = 0; i < 3; ++i) {
        SCOPED_TRACE(std::string(task.id) + ' ' + std::string(level.name));
        check(task, level, make_sample(task, level, v, 7, i));
      }
}

TEST(EveryTask, GivesTheSameSampleForTheSameSeedAndAnotherForAnother) {
  const Vocabulary v = toy_vocabulary();
  for (const Task& task : suite_tasks()) {
    const Level& level = task.levels.front();
    const auto flat = [&](std::uint64_t seed, std::uint32_t index) {
      const Sample s = make_sample(task, level, v, seed, index);
      std::vector<TokenId> all = s.context;
      for (const Question& q : s.questions) all.insert(all.end(), q.prompt.begin(), q.prompt.end());
      return all;
    };
    EXPECT_EQ(flat(7, 0), flat(7, 0)) << task.id;
    EXPECT_NE(flat(7, 0), flat(7, 1)) << task.id;
    EXPECT_NE(flat(7, 0), flat(8, 0)) << task.id;
  }
}

TEST(EveryTask, AsksSomethingWhoseAnswerStandsInTheContext) {
  for_all_samples([](const Task& task, const Level&, const Sample& s) {
    ASSERT_FALSE(s.questions.empty());
    for (const Question& q : s.questions) {
      ASSERT_LT(q.right, q.candidates.size());
      for (const auto& c : q.candidates) EXPECT_EQ(c.size(), q.candidates[0].size());
      EXPECT_TRUE(std::is_sorted(q.answer.begin(), q.answer.end()));
      if (task.metric == Metric::likelihood || task.metric == Metric::agreement) continue;
      ASSERT_FALSE(q.answer.empty());
      ASSERT_LT(q.answer.back(), s.context.size());
      std::vector<TokenId> held;
      for (std::uint32_t slot : q.answer) held.push_back(s.context[slot]);
      const auto& right = q.candidates[q.right];
      EXPECT_NE(std::search(held.begin(), held.end(), right.begin(), right.end()), held.end());
    }
  });
}

TEST(EveryTask, RanksDifferentCandidatesOnly) {
  for_all_samples([](const Task& task, const Level&, const Sample& s) {
    for (const Question& q : s.questions) {
      const std::set<std::vector<TokenId>> distinct(q.candidates.begin(), q.candidates.end());
      EXPECT_EQ(distinct.size(), q.candidates.size());
      EXPECT_EQ(q.candidates.size() > 1, task.metric == Metric::ranking);
    }
  });
}

// A window that holds the answer would measure StreamingLLM.
TEST(Lookup, NeverAsksForTheLastPairAndNeverTwiceForOne) {
  for_all_samples([](const Task& task, const Level& level, const Sample& s) {
    if (task.id != "S4" && task.id != "S6") return;
    EXPECT_EQ(s.questions.size(), std::min(task.id == "S6" ? 8u : 4u, level.size - 1));
    std::set<std::uint32_t> asked;
    for (const Question& q : s.questions) {
      EXPECT_LT(q.right, level.size - 1);
      EXPECT_TRUE(asked.insert(q.right).second);
    }
  });
}

TEST(Passkey, StandsAtTheDepthAskedFor) {
  for_all_samples([](const Task& task, const Level& level, const Sample& s) {
    if (task.id != "S5") return;
    const double behind = static_cast<double>(s.context.size() - 1 - s.questions[0].answer.back());
    EXPECT_NEAR(behind / level.context, 1 - level.extra / 100.0, 0.02);
  });
}

// The names of a chain lead from the question to its value.
TEST(Chain, LeadsFromTheNameToItsValue) {
  for_all_samples([](const Task& task, const Level& level, const Sample& s) {
    if (task.id != "S7") return;
    for (const Question& q : s.questions) {
      TokenId name = q.prompt[q.prompt.size() - 3];  // then " ="
      for (std::uint32_t hop = 0; hop <= level.extra; ++hop) {
        bool found = false;
        for (std::size_t i = 0; !found && i + 3 < s.context.size(); ++i)
          if (s.context[i] == name && s.context[i + 1] == ' ' && s.context[i + 2] == '=') {
            name = s.context[i + 3];
            found = true;
          }
        ASSERT_TRUE(found);
      }
      EXPECT_EQ(q.candidates[q.right], std::vector<TokenId>{name});
    }
  });
}

TEST(Continuation, IsTheTextThatFollows) {
  for_all_samples([](const Task& task, const Level& level, const Sample& s) {
    if (task.id != "S1") return;
    EXPECT_EQ(s.context.size(), level.context);
    EXPECT_EQ(s.questions[0].candidates[0].size(), level.size);
    EXPECT_EQ(s.questions[0].candidates[0][0], s.context.back() + 1);  // the toy text counts
  });
}

TEST(Chance, IsOneInAsManyAsThereAre) {
  const Vocabulary v = toy_vocabulary();
  std::map<std::string_view, double> by_id;
  for (const Task& task : suite_tasks())
    by_id[task.id] = chance(task, make_sample(task, task.levels[0], v, 1, 0));
  EXPECT_DOUBLE_EQ(by_id["S3"], 0);
  EXPECT_DOUBLE_EQ(by_id["S4"], 0.25);
  EXPECT_DOUBLE_EQ(by_id["S5"], 0.1);
}

}  // namespace
}  // namespace quire
