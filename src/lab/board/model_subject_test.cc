// The leaderboard's subject on a tiny model: rows are what they say, and do not disturb each other.
#include "lab/board/model_subject.h"

#include <gtest/gtest.h>

#include "engine/testing.h"
#include "lab/board/testing.h"
#include "lab/board/way.h"

namespace quire {
namespace {

TinyOptions tiny() { return {.type = DType::q8_0, .layers = 3, .hidden = 128, .head_dim = 64}; }

Sample sample(bool lookup) {
  Random random(5);
  Sample s;
  for (int i = 0; i < 300; ++i) s.context.push_back(static_cast<TokenId>(32 + random.below(90)));
  if (lookup) {
    s.questions.push_back({.prompt = {40, 41, 42},
                           .candidates = {{50}, {51}, {52}},
                           .right = 1,
                           .answer = {100, 101}});
    s.questions.push_back({.prompt = {60, 61}, .candidates = {{70}, {71}, {72}}, .answer = {30}});
  } else {
    s.questions.push_back({.candidates = {{50, 51, 52, 53, 54, 55, 56}}});
  }
  return s;
}

std::vector<RowSpec> rows() {
  std::vector<RowSpec> all = {{"full", 1}, {"none", 0}};
  for (const RetainMethod* m : retain_methods())
    all.push_back({std::string(m->name), 0.3, m->shares == RetainClass::question});
  for (const char* more : {"ada-snapkv", "critical-snapkv", "h2o+value", "h2o+d2o", "h2o+cam",
                           "snapkv+hadamard-int4", "int8", "kivi-2"})
    all.push_back(
        {more, std::string_view(more).starts_with("int8") || std::string_view(more) == "kivi-2"
                   ? 1
                   : 0.3});
  return all;
}

bool same(const Measured& a, const Measured& b) {
  for (std::size_t q = 0; q < a.replies.size(); ++q)
    if (a.replies[q].nll != b.replies[q].nll || a.replies[q].top != b.replies[q].top ||
        a.replies[q].kl != b.replies[q].kl)
      return false;
  return a.bytes_per_token == b.bytes_per_token;
}

TEST(ModelSubject, RowsDoNotDisturbEachOther) {
  TinyRuntime runtime(tiny(), {.tokens_per_block = 16});
  ModelSubject subject(*runtime);
  for (const bool lookup : {false, true}) {
    const Sample s = sample(lookup);
    const auto together = subject.answer(s, rows());
    ASSERT_TRUE(together.ok()) << together.error().message;
    for (std::size_t i = 0; i < rows().size(); ++i) {
      SCOPED_TRACE(rows()[i].name());
      const std::vector<RowSpec> few = {rows()[0], rows()[i]};
      const auto alone = subject.answer(s, few);
      ASSERT_TRUE(alone.ok());
      EXPECT_TRUE(same(alone.value()[1], together.value()[i]));
    }
    EXPECT_EQ(runtime->cache().stats().referenced_blocks, 0u);
  }
}

TEST(ModelSubject, BytesAreThoseOfWhatIsKept) {
  TinyRuntime runtime(tiny(), {.tokens_per_block = 16});
  ModelSubject subject(*runtime);
  const auto all = rows();
  const auto measured = subject.answer(sample(true), all);
  ASSERT_TRUE(measured.ok());
  const double full = measured.value()[0].bytes_per_token;
  for (std::size_t i = 2; i < all.size(); ++i) {
    const Measured& m = measured.value()[i];
    if (all[i].share == 1) continue;
    EXPECT_LT(m.bytes_per_token, (all[i].share + 0.12) * full) << all[i].name();
    if (all[i].method == "snapkv+hadamard-int4") continue;
    EXPECT_GT(m.bytes_peak, full) << all[i].name();
  }
}

TEST(ModelSubject, KeepingEverythingIsTheWholeCache) {
  TinyRuntime runtime(tiny(), {.tokens_per_block = 16});
  ModelSubject subject(*runtime);
  const std::vector<RowSpec> two = {{"full", 1}, {"knorm", 1}, {"random", 0.2}};
  const auto measured = subject.answer(sample(false), two);
  ASSERT_TRUE(measured.ok());
  const Reply &full = measured.value()[0].replies[0], &all = measured.value()[1].replies[0];
  ASSERT_EQ(full.nll[0].size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(full.nll[0][i], all.nll[0][i]);
    EXPECT_NEAR(all.kl[i], 0, 1e-6);
    EXPECT_EQ(full.kl[i], 0);
  }
  EXPECT_GT(measured.value()[2].replies[0].kl[3], 1e-6);
}

// Rows that read, or reuse, everything are the whole cache; with less they are not.
TEST(ModelSubject, SelectingAndReusingRowsAreWhatTheySay) {
  TinyRuntime runtime(tiny(), {.tokens_per_block = 16});
  ModelSubject subject(*runtime);
  const std::vector<RowSpec> all = {
      {"full", 1},          {"quest", 1},        {"xattention", 1},
      {"cacheblend", 0},    {"quest", 0.2},      {"xattention", 0.4},
      {"cacheblend", 0.85}, {"key-rotation", 1}, {"vertical-slash", 0.12}};
  const auto measured = subject.answer(sample(false), all);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Reply &full = measured.value()[0].replies[0], &own = measured.value()[i].replies[0];
    EXPECT_EQ(own.nll == full.nll, i < 4) << all[i].name();
    EXPECT_NEAR(measured.value()[i].bytes_per_token, measured.value()[0].bytes_per_token, 1);
  }
}

// Only rows that drop tokens while decoding read a stream, and they need less memory. The speed is
// that of one answer.
TEST(ModelSubject, StreamsAndTimes) {
  TinyRuntime runtime(tiny(), {.tokens_per_block = 16});
  ModelSubject subject(*runtime);
  const std::vector<RowSpec> all = {
      {"full", 1}, {"none", 0}, {"streaming", 0.25}, {"h2o", 0.25, true}, {"snapkv", 0.25, true},
      {"int8", 1}};
  Sample s = sample(false);
  s.stream = true;
  s.questions[0].candidates[0] = s.context;
  s.context.resize(32);
  const auto streamed = subject.answer(s, all);
  ASSERT_TRUE(streamed.ok()) << streamed.error().message;
  const auto& m = streamed.value();
  EXPECT_TRUE(m[4].replies.empty() && m[5].replies.empty());
  for (const std::size_t i : {0u, 1u, 2u, 3u}) {
    ASSERT_EQ(m[i].replies[0].nll[0].size(), 300u) << all[i].name();
    EXPECT_EQ(m[i].replies[0].kl[250] == 0, i == 0) << all[i].name();
    EXPECT_EQ(m[i].bytes_peak<m[0].bytes_peak / 2, i> 0) << all[i].name();
  }
  Sample timed = sample(false);
  timed.timed = true;
  const auto speeds = subject.answer(timed, all);
  ASSERT_TRUE(speeds.ok());
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(speeds.value()[i].decode_s > 0, i != 1) << all[i].name();
}

TEST(Way, IsReadFromItsParts) {
  EXPECT_EQ(parse_way("quest").value().selects, "quest");
  EXPECT_TRUE(parse_way("cacheblend").value().blends);
  EXPECT_FALSE(parse_way("quest+snapkv").ok());
  EXPECT_TRUE(parse_way("none").value().no_context);
  EXPECT_EQ(parse_way("h2o+cam").value().merger->name, "cam");
  EXPECT_EQ(parse_way("snapkv+hadamard-int4").value().format->name, "hadamard-int4");
  EXPECT_EQ(parse_way("hadamard-int4+snapkv").value().method->name, "snapkv");
  EXPECT_FALSE(parse_way("nobody").ok());
  EXPECT_FALSE(parse_way("int8+cam").ok());
  EXPECT_FALSE(parse_way("").ok());
}

}  // namespace
}  // namespace quire
