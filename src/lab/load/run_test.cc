// The whole generator against a server whose delays are known.
#include "lab/load/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "lab/load/plot.h"
#include "lab/load/scripted_server.h"
#include "lab/load/summary.h"

namespace quire::load {
namespace {

Json usage(std::uint64_t prompt, std::uint64_t output, std::uint64_t cached) {
  return {{"prompt_tokens", prompt},
          {"completion_tokens", output},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

// As many tokens as words, and 7 for the template.
std::uint64_t words_in(const Json& body) {
  std::uint64_t words = 7;
  for (const Json& m : body["messages"]) {
    const std::string text = m["content"];
    words += 1 + static_cast<std::uint64_t>(std::count(text.begin(), text.end(), ' '));
  }
  return words;
}

Plan plan_for(const ScriptedServer& server, std::uint32_t concurrency) {
  Plan plan;
  plan.endpoint = Endpoint::from_url(server.url() + "/v1/").value();
  plan.ask.model = "scripted";
  plan.concurrency = concurrency;
  return plan;
}

Workload random_workload(std::uint32_t sessions) {
  return make_workload({.kind = "random", .sessions = sessions, .input = 20, .output = 4}).value();
}

TEST(RunLoad, TimesAndCountsAreThoseOfTheScript) {
  ScriptedServer server([](const std::string& path, const Json&) {
    EXPECT_EQ(path, "/v1/chat/completions");
    return Script{{{0.060, "a"}, {0.020, "b"}, {0.020, "c"}, {0.020, "d"}}, usage(100, 4, 25)};
  });
  const Measured run = run_load(plan_for(server, 2), random_workload(6)).value();
  const Summary s = summarize(run, {.ttft_s = 10, .tpot_s = 0.001, .total_s = {}});
  ASSERT_EQ(s.requests, 6u);
  EXPECT_EQ(s.failed, 0u);
  EXPECT_EQ(s.output_tokens, 24u);
  EXPECT_EQ(s.prompt_tokens, 600u);
  EXPECT_DOUBLE_EQ(*s.hit_rate, 0.25);
  EXPECT_EQ(s.itl_s.count, 18u);
  // A sleep never ends early, but a token may be noticed late, which shortens the gap after it.
  EXPECT_GE(s.ttft_s.min, 0.060);
  EXPECT_GE(s.itl_s.p50, 0.015);
  EXPECT_LT(s.itl_s.p50, 1.0);
  EXPECT_GE(s.tpot_s.p50, 0.015);
  EXPECT_GE(s.seconds, 3 * 0.120);  // two at a time
  EXPECT_DOUBLE_EQ(*s.kept_slo, 0) << "every request was slower than 1 ms a token";
  EXPECT_LE(server.connections(), 2u) << "connections are used again";
}

TEST(RunLoad, ClosedLoopNeverHasMoreInFlight) {
  std::atomic<int> now = 0, most = 0;
  ScriptedServer server([&](const std::string&, const Json&) {
    most = std::max(most.load(), ++now);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --now;
    return Script{{{0, "x"}}, usage(1, 1, 0)};
  });
  EXPECT_EQ(run_load(plan_for(server, 3), random_workload(20)).value().requests.size(), 20u);
  EXPECT_LE(most, 3);
  EXPECT_GE(most, 2);
}

TEST(RunLoad, OpenLoopSendsByTheClockWhateverTheServerDoes) {
  std::atomic<int> now = 0, most = 0;
  ScriptedServer server([&](const std::string&, const Json&) {
    most = std::max(most.load(), ++now);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    --now;
    return Script{{{0, "slow"}}, usage(1, 1, 0)};
  });
  Workload workload = random_workload(10);
  start_by_clock(workload, 100, false, 1);
  const Measured run = run_load(plan_for(server, 0), workload).value();
  ASSERT_EQ(run.requests.size(), 10u);
  for (const Record& r : run.requests) EXPECT_GE(r.sent_s, 0.01 * r.session - 1e-9);
  EXPECT_GE(most, 5) << "nobody waits for the slow answers";
}

TEST(RunLoad, LaterTurnsRepeatTheConversation) {
  ScriptedServer server([](const std::string&, const Json& body) {
    return Script{{{0, "answer"}, {0, " it is"}}, usage(words_in(body), 2, 0)};
  });
  const Workload agent =
      make_workload({.kind = "agent", .sessions = 2, .turns = 3, .input = 10, .prefix = 40})
          .value();
  const Summary s = summarize(run_load(plan_for(server, 1), agent).value(), {});
  EXPECT_EQ(s.ttft_first_s.count, 2u);
  EXPECT_EQ(s.ttft_later_s.count, 4u);
  const std::vector<Json> bodies = server.bodies();
  ASSERT_EQ(bodies.size(), 6u);
  for (int turn = 1; turn < 3; ++turn) {
    const Json &before = bodies[turn - 1]["messages"], &now = bodies[turn]["messages"];
    ASSERT_EQ(now.size(), before.size() + 2);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(now[i], before[i]);
    EXPECT_EQ(now[before.size()]["role"], "assistant");
    EXPECT_EQ(now[before.size()]["content"], "answer it is");
  }
  EXPECT_EQ(bodies[0]["messages"][0], bodies[3]["messages"][0]) << "one prefix for all sessions";
  EXPECT_NE(bodies[0]["messages"][1], bodies[3]["messages"][1]);
}

TEST(RunLoad, CalibrationMakesPromptsOfTheWantedLength) {
  ScriptedServer server([](const std::string&, const Json& body) {
    return Script{{{0, "x"}}, usage(2 * words_in(body), 1, 0)};
  });
  Plan plan = plan_for(server, 1);
  plan.ask.calibration = calibrate(plan).value();
  EXPECT_DOUBLE_EQ(plan.ask.calibration.per_word, 2);
  EXPECT_DOUBLE_EQ(plan.ask.calibration.fixed, 14);
  const Workload workload =
      make_workload({.kind = "random", .sessions = 1, .input = 300, .output = 1}).value();
  EXPECT_EQ(run_load(plan, workload).value().requests[0].usage.prompt, 300u + 14);
}

TEST(RunLoad, FailuresAreToldAndCountedApart) {
  std::atomic<int> count = 0;
  ScriptedServer server([&](const std::string&, const Json&) {
    const int n = count++;
    if (n == 0) return Script{{{0, "{\"error\":\"full\"}"}}, {}, 503};
    if (n == 1) return Script{{{0, "half"}}, {}, 200, true};
    if (n == 2) return Script{{}, usage(1, 0, 0)};
    return Script{{{0, "x"}}, usage(1, 1, 0)};
  });
  const Summary s = summarize(run_load(plan_for(server, 1), random_workload(5)).value(), {});
  EXPECT_EQ(s.requests, 5u);
  EXPECT_EQ(s.failed, 3u);
  EXPECT_EQ(s.output_tokens, 2u);
  ASSERT_EQ(s.errors.size(), 3u);
  EXPECT_NE(s.errors[0].find("503"), std::string::npos);
  EXPECT_NE(s.errors[0].find("full"), std::string::npos);
  EXPECT_NE(s.errors[1].find("closed"), std::string::npos);
}

TEST(RunLoad, AThousandStreamsAtOnce) {
  ScriptedServer server([](const std::string&, const Json&) {
    return Script{{{0.5, "a"}, {0.05, "b"}}, usage(5, 2, 0)};
  });
  const Measured run = run_load(plan_for(server, 1000), random_workload(1000)).value();
  const Summary s = summarize(run, {});
  EXPECT_EQ(s.failed, 0u) << (s.errors.empty() ? "" : s.errors[0]);
  EXPECT_EQ(s.output_tokens, 2000u);
}

TEST(RunLoad, ATimeoutEndsARequest) {
  ScriptedServer server([](const std::string&, const Json&) {
    return Script{{{0.2, "late"}}, usage(1, 1, 0)};
  });
  Plan plan = plan_for(server, 1);
  plan.timeout_s = 0.05;
  // The wait for events is a second at most, so the timeout is seen when the answer comes or then.
  plan.concurrency = 0;
  Workload workload = random_workload(3);
  start_by_clock(workload, 10, false, 1);
  EXPECT_GE(summarize(run_load(plan, workload).value(), {}).failed, 1u);
}

TEST(Plot, IsOnePictureEvenOfAnEmptyRun) {
  Measured run;
  EXPECT_NE(plot_svg(run, "a <b> & c").find("a &lt;b&gt; &amp; c"), std::string::npos);
  run.requests.push_back({.sent_s = 0,
                          .first_s = 0.1,
                          .last_s = 0.3,
                          .end_s = 0.3,
                          .gaps_s = {0.2f},
                          .usage = {10, 2, 0},
                          .error = {}});
  const std::string svg = plot_svg(run, "one");
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace quire::load
