// Equal requests at once, and requests whose policies hold memory beside plain ones: each request gets
// the answer that it gets alone, and each that fits alone finishes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine_testing.h"
#include "engine/lane_rows.h"
#include "engine/retain.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

TinyOptions crowd_model() { return {.type = DType::q8_0, .layers = 4, .head_dim = 32}; }

std::shared_ptr<const RetainPolicy> budget_of(std::string_view text) {
  return std::make_shared<RetainPolicy>(parse_retain_policy(text).value());
}

Request asking(std::vector<TokenId> prompt, std::string_view budget, std::uint32_t tokens) {
  Request r = request(std::move(prompt), tokens);
  if (!budget.empty()) r.kv.retain = budget_of(budget);
  return r;
}

// On an engine of its own.
std::vector<std::vector<TokenId>> alone(Request r, std::uint64_t bytes = std::uint64_t{64} << 20) {
  TinyEngine e(crowd_model(), {.kv_cache_bytes = bytes}, {.step_tokens = 512});
  const auto sink = e.submit(std::move(r));
  e.run();
  EXPECT_TRUE(sink->result) << (sink->failure ? sink->failure->message : "not over");
  std::vector<std::vector<TokenId>> all;
  for (const MemorySink::Answer& answer : sink->answers) all.push_back(answer.ids());
  return all;
}

// A policy that acts while decoding also acts behind its cut while the prompt is still being read:
// where it does must not depend on how the prompt was cut into steps.
TEST(Crowd, EqualRequestsWithACutAnswerAsAlone) {
  const auto prompt = printable_of(330, 5);
  for (const char* name :
       {"streaming", "window", "h2o", "tova", "keydiff", "knorm", "scissorhands", "random"}) {
    SCOPED_TRACE(name);
    const std::string budget = fmt::format("{}:64,cut=64", name);
    const auto wanted = alone(asking(prompt, budget, 12));
    TinyEngine e(crowd_model(), {}, {.step_tokens = 512, .prompt_tokens = 96});
    std::vector<std::shared_ptr<MemorySink>> sinks;
    for (int i = 0; i < 6; ++i) sinks.push_back(e.submit(asking(prompt, budget, 12)));
    e.run();
    for (const auto& sink : sinks) {
      ASSERT_TRUE(sink->result);
      EXPECT_EQ(sink->answers[0].ids(), wanted[0]);
    }
    e.engine->drop_snapshots();
    e.expect_empty();
  }
}

TEST(Crowd, APromptShorterThanItsCutLeavesNothingForALongerOne) {
  const auto prompt = printable_of(400, 6);
  const std::vector<TokenId> half(prompt.begin(), prompt.begin() + 150);
  for (const char* budget : {"expected:30%,cut=300", "keydiff:30%,cut=300"}) {
    SCOPED_TRACE(budget);
    const auto wanted = alone(asking(prompt, budget, 8));
    TinyEngine e(crowd_model());
    e.submit(asking(half, budget, 8));
    e.run();
    const auto sink = e.submit(asking(prompt, budget, 8));
    e.run();
    EXPECT_EQ(sink->answers[0].ids(), wanted[0]);
  }
}

// What a compacted sequence holds is never dropped while it is parked; who needs the room gets it all
// the same, and both answer as alone.
TEST(Crowd, AParkedBudgetFailsNobody) {
  constexpr std::uint64_t kBytes = std::uint64_t{6} << 20;
  const auto plain = [] { return asking(printable_of(40, 1), "", 3900); };
  const auto kept = [] { return asking(printable_of(500, 2), "snapkv:50%", 2400); };
  const auto plain_alone = alone(plain(), kBytes), kept_alone = alone(kept(), kBytes);
  TinyEngine e(crowd_model(), {.kv_cache_bytes = kBytes}, {.step_tokens = 256});
  const auto first = e.submit(plain()), second = e.submit(kept());
  e.run();
  ASSERT_TRUE(first->result) << (first->failure ? first->failure->message : "not over");
  ASSERT_TRUE(second->result) << (second->failure ? second->failure->message : "not over");
  EXPECT_EQ(first->answers[0].ids(), plain_alone[0]);
  EXPECT_EQ(second->answers[0].ids(), kept_alone[0]);
  EXPECT_GT(second->result->preemptions, 0u);
  e.expect_empty();
}

// A fork that is made while its origin reads the prompt again reads for itself, and keeps the same.
TEST(Crowd, AForkReadsThePromptAgainByItself) {
  TinyRuntime r(crowd_model());
  Stepper stepper(*r);
  const auto prompt = printable_of(300, 10);
  const RootId root = r->tenant_root("").value();
  Retaining first(*r, budget_of("kvzip:40%"), 300, root);
  SequenceOptions options{.root = root, .token_capacity = 340};
  first.open(options);
  Sequence s = std::move(r->cache().open(options).value());
  r->cache().attach(s, prompt);
  ASSERT_TRUE(stepper.prefill(s, 300, 0, {}, &first).ok());
  const auto work = [&](Program& program, Sequence& of) {
    double rows = 50;
    return program.work(stepper, of, rows);
  };
  ASSERT_EQ(work(first, s), Program::Work::unfinished);
  const std::unique_ptr<Program> second = first.fork();
  Sequence other = std::move(r->cache().fork(s).value());
  const auto kept = [&](Program& program, Sequence& of) {
    while (work(program, of) == Program::Work::unfinished) continue;
    EXPECT_TRUE(program.before_step(stepper, of).ok());
    std::vector<std::uint32_t> all;
    for (std::uint32_t layer = 0; layer < r->config().layers; ++layer)
      for (std::uint32_t head = 0; head < r->config().kv_heads; ++head)
        for (const std::uint32_t t : lane_tokens(*r, of, layer, head)) all.push_back(t);
    return all;
  };
  const auto wanted = kept(first, s);
  EXPECT_EQ(kept(*second, other), wanted);
  EXPECT_LT(wanted.size(), std::size_t{300} * r->config().layers * r->config().kv_heads);
}

TEST(Crowd, MoreSequencesThanACacheHoldsAreRefusedNotFatal) {
  TinyEngine e(crowd_model(), {.kv_cache_bytes = std::uint64_t{256} << 20, .rows_max = 2048},
               {.step_tokens = 2048, .sequences_max = 2048});
  std::vector<std::shared_ptr<MemorySink>> sinks;
  for (int i = 0; i < 1300; ++i) sinks.push_back(e.submit(asking(printable_of(2, 1 + i), "", 3)));
  e.run();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->result);
  e.expect_empty();
}

TEST(Crowd, EndlessAnswersHaveAnEnd) {
  TinyRuntime r(crowd_model());
  Request q = asking(printable_of(20, 1), "streaming:64", 1 << 30);
  const PreparedJob refused = prepare_job(*r, {}, std::move(q), nullptr);
  EXPECT_EQ(refused.failure.kind, FailureKind::invalid);
}

// A token whose numbers are not finite ends its request wherever it stands, also where its chunk wants
// no logits and its format would have encoded NaN as 0, and nothing of the request stays.
TEST(Crowd, NumbersThatAreNotFiniteEndTheirRequestAlone) {
  for (const char* format : {"f16", "f32", "int8", "hadamard-int4"}) {
    SCOPED_TRACE(format);
    const TinyOptions model{.layers = 2, .head_dim = 32, .tied_head = false, .broken = true};
    TinyEngine e(model, {.kv_format = format}, {.step_tokens = 64});
    const auto good = printable_of(200, 5);
    auto bad = printable_of(200, 6);
    bad[70] = 7;
    const auto first = e.submit(request(bad, 8)), other = e.submit(request(good, 8));
    e.run();
    ASSERT_TRUE(first->failure);
    EXPECT_EQ(first->failure->kind, FailureKind::numeric);
    ASSERT_TRUE(other->result);
    EXPECT_EQ(other->answers[0].ids().size(), 8u);
    // What came before the chunk with the token may stay; the chunk and what comes after may not.
    Sequence s = std::move(e.runtime->open_sequence(200).value());
    EXPECT_LE(e.runtime->cache().attach(s, bad).tokens, 64u);
    s.close();
    e.expect_empty();
  }
}

}  // namespace
}  // namespace quire
