#include "lab/load/workload.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/load/summary.h"

namespace quire::load {
namespace {

TEST(Workload, SharedPrefixesAreDealtInTurn) {
  const Workload w =
      make_workload(
          {.kind = "shared-prefix", .sessions = 6, .input = 20, .prefix = 3980, .groups = 2})
          .value();
  ASSERT_EQ(w.sessions.size(), 6u);
  EXPECT_EQ(w.sessions[0].opening[0].seed, w.sessions[2].opening[0].seed);
  EXPECT_NE(w.sessions[0].opening[0].seed, w.sessions[1].opening[0].seed);
  EXPECT_NE(w.sessions[0].turns[0].adds.seed, w.sessions[2].turns[0].adds.seed);
}

TEST(Workload, AnotherSeedSharesNothing) {
  const WorkloadShape shape{.kind = "random", .sessions = 2};
  WorkloadShape other = shape;
  other.seed = 2;
  const auto seed = [](const WorkloadShape& s) {
    return make_workload(s).value().sessions[0].turns[0].adds.seed;
  };
  EXPECT_EQ(seed(shape), seed(shape));
  EXPECT_NE(seed(shape), seed(other));
}

TEST(Workload, PoissonGapsHaveTheirMeanAndSpread) {
  Workload w = make_workload({.sessions = 20000}).value();
  start_by_clock(w, 50, true, 7);
  double sum = 0, squares = 0;
  for (std::size_t i = 1; i < w.sessions.size(); ++i) {
    const double gap = w.sessions[i].start_s - w.sessions[i - 1].start_s;
    sum += gap;
    squares += gap * gap;
  }
  const double n = static_cast<double>(w.sessions.size() - 1), mean = sum / n;
  EXPECT_NEAR(mean, 0.02, 0.0005);
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean), 0.02, 0.001);  // exponential: equal to the mean
}

TEST(Workload, UnknownKindsAreNamed) {
  EXPECT_NE(make_workload({.kind = "chaos"}).error().message.find("'chaos'"), std::string::npos);
  EXPECT_FALSE(make_workload({.sessions = 0}).ok());
}

TEST(Trace, BlockTracesShareTextWhereIdsAreEqual) {
  const Workload w =
      parse_trace(
          R"({"timestamp": 5000, "input_length": 1100, "output_length": 9, "hash_ids": [1, 2, 3]}
         {"timestamp": 4000, "input_length": 600, "output_length": 5, "hash_ids": [1, 7]})",
          "t")
          .value();
  ASSERT_EQ(w.sessions.size(), 2u);
  EXPECT_DOUBLE_EQ(w.sessions[0].start_s, 0) << "sorted, from zero";
  EXPECT_DOUBLE_EQ(w.sessions[1].start_s, 1);
  EXPECT_EQ(w.sessions[0].opening[0].seed, w.sessions[1].opening[0].seed);
  EXPECT_NE(w.sessions[0].opening[1].seed, w.sessions[1].opening[1].seed);
  EXPECT_EQ(w.sessions[1].opening[2].tokens, 1100u - 1024);
  EXPECT_EQ(w.sessions[1].turns[0].output_tokens, 9u);
}

TEST(Trace, RecordedMessagesAreSentAsTheyWere) {
  const std::string lines =
      R"({"at": 1, "messages": [{"role": "system", "content": "Be brief."}, )"
      R"({"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "output_tokens": 3})"
      "\n\n"
      R"({"at": 3, "prompt": "Once"})";
  const Workload w = parse_trace(lines, "t").value();
  ASSERT_EQ(w.sessions.size(), 2u);
  EXPECT_EQ(w.sessions[0].opening[0].role, "system");
  EXPECT_EQ(w.sessions[0].opening[0].text, "Be brief.");
  EXPECT_EQ(w.sessions[0].turns[0].adds.text, "Hi");
  EXPECT_EQ(w.sessions[1].turns[0].adds.text, "Once");
}

TEST(Trace, ABadLineIsNamedByNumber) {
  for (const char* bad :
       {"{", "[]", "{}", R"({"hash_ids": ["x"], "input_length": 9})", R"({"messages": [5]})"}) {
    const auto w = parse_trace(std::string("{\"prompt\": \"a\"}\n") + bad, "file.jsonl");
    ASSERT_FALSE(w.ok()) << bad;
    EXPECT_NE(w.error().message.find("file.jsonl line 2"), std::string::npos) << bad;
  }
}

TEST(Summary, PercentilesInterpolate) {
  const Distribution d = distribution({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(d.p50, 2.5);
  EXPECT_DOUBLE_EQ(d.p90, 3.7);
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.max, 4);
  EXPECT_DOUBLE_EQ(distribution({7}).p99, 7);
  EXPECT_EQ(distribution({}).count, 0u);
}

TEST(Summary, FiguresFollowFromTheRecords) {
  Measured run;
  run.seconds = 4;
  run.requests.push_back({.session = 0,
                          .sent_s = 0,
                          .first_s = 0.5,
                          .last_s = 1.5,
                          .end_s = 1.6,
                          .gaps_s = {0.5f, 0.5f},
                          .usage = {100, 5, 40},
                          .error = {}});
  run.requests.push_back({.session = 1,
                          .sent_s = 1,
                          .first_s = 1.1,
                          .last_s = 2.1,
                          .end_s = 4,
                          .gaps_s = {0.25f, 0.75f},
                          .usage = {60, 3, 40},
                          .error = {}});
  run.requests.push_back({.session = 2, .sent_s = 1, .end_s = 2, .error = "status 503"});
  const Summary s = summarize(run, parse_slo("ttft=200ms,tpot=0.6s").value());
  EXPECT_DOUBLE_EQ(s.output_tokens_per_s, 2);
  EXPECT_DOUBLE_EQ(s.requests_per_s, 0.5);
  EXPECT_DOUBLE_EQ(*s.hit_rate, 0.5);
  EXPECT_NEAR(s.ttft_s.p50, 0.3, 1e-12);
  EXPECT_DOUBLE_EQ(s.tpot_s.min, 0.25);  // 1 s over 4 steps
  EXPECT_DOUBLE_EQ(s.tpot_s.max, 0.5);
  EXPECT_DOUBLE_EQ(s.itl_s.max, 0.75);
  EXPECT_DOUBLE_EQ(*s.goodput_per_s, 0.25) << "one of three kept both limits, in 4 s";
  EXPECT_DOUBLE_EQ(*s.kept_slo, 1.0 / 3);
}

TEST(Summary, LimitsAreReadWithTheirUnits) {
  const Slo slo = parse_slo("ttft=500ms,total=10s").value();
  EXPECT_DOUBLE_EQ(*slo.ttft_s, 0.5);
  EXPECT_DOUBLE_EQ(*slo.total_s, 10);
  EXPECT_FALSE(slo.tpot_s);
  for (const char* bad : {"ttft", "ttft=5", "speed=3s", "ttft=-1s", "ttft=1s,,tpot=x"})
    EXPECT_FALSE(parse_slo(bad).ok()) << bad;
}

}  // namespace
}  // namespace quire::load
