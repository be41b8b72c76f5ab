#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"
#include "engine/engine_testing.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kEnd = 257;

// The same request computed alone, on another runtime.
std::vector<Generated> alone(const Request& r) {
  static TinyRuntime runtime(tiny());
  auto got = naive_generate(*runtime, r.prompt, alone_options(r));
  EXPECT_TRUE(got.ok()) << got.error().message;
  return std::move(got.value().answers);
}

void expect_same(const MemorySink& sink, const std::vector<Generated>& expected) {
  ASSERT_TRUE(sink.result) << (sink.failure ? sink.failure->message : "not over");
  ASSERT_EQ(sink.answers.size(), expected.size());
  for (std::size_t c = 0; c < expected.size(); ++c) {
    EXPECT_EQ(sink.answers[c].ids(), expected[c].tokens) << "choice " << c;
    for (std::size_t i = 0; i < std::min(sink.answers[c].tokens.size(), expected[c].choices.size());
         ++i)
      EXPECT_EQ(sink.answers[c].tokens[i].logprob, expected[c].choices[i].logprob);
    EXPECT_EQ(sink.answers[c].finish, expected[c].finish);
  }
}

TEST(Engine, AnswersOneRequestAsGenerateDoes) {
  TinyEngine e(tiny());
  const Request r = request(text_of(100, 1), 20);
  Request copy = request(text_of(100, 1), 20);
  const auto sink = e.submit(std::move(copy));
  e.run();
  expect_same(*sink, alone(r));
  EXPECT_EQ(sink->admission.prompt_tokens, 100u);
  EXPECT_EQ(sink->admission.cached_tokens, 0u);
  EXPECT_EQ(sink->result->computed_tokens, 100u);
  EXPECT_EQ(sink->result->written_tokens, 96u);
  EXPECT_EQ(sink->result->generated_tokens, 20u);
  e.expect_empty();
}

TEST(Engine, BatchesWhatRunsTogether) {
  TinyEngine e(tiny(), {}, {.step_tokens = 64});
  std::vector<std::shared_ptr<MemorySink>> sinks;
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 12; ++i) {
    Request r = request(text_of(20 + 17 * i, i), 5 + i);
    r.sampling = {.temperature = i % 3 == 0 ? 0.f : 1.f, .seed = i};
    r.choices = 1 + i % 3;
    Request copy = request(r.prompt, r.tokens_max);
    copy.sampling = r.sampling;
    copy.choices = r.choices;
    requests.push_back(std::move(copy));
    sinks.push_back(e.submit(std::move(r)));
  }
  e.run();
  for (std::size_t i = 0; i < sinks.size(); ++i) expect_same(*sinks[i], alone(requests[i]));
  // Together they took far fewer steps than one after the other.
  EXPECT_LT(e.engine->stats().steps, 60u);
  e.expect_empty();
}

TEST(Engine, ASecondPromptHitsWhatTheFirstLeft) {
  TinyEngine e(tiny());
  std::vector<TokenId> prompt = text_of(200, 3);
  e.submit(request(prompt));
  e.run();
  prompt.resize(150);
  const auto sink = e.submit(request(prompt));
  e.run();
  EXPECT_EQ(sink->admission.cached_tokens, 149u);  // exact format: the last block in part
  expect_same(*sink, alone(request(prompt)));

  Request other = request(prompt);
  other.kv.tenant = "other";
  Request salted = request(prompt);
  salted.kv.salt = "s";
  Request cold = request(prompt);
  cold.kv.reuse = false;
  for (Request* r : {&other, &salted, &cold}) {
    const auto missed = e.submit(std::move(*r));
    e.run();
    EXPECT_EQ(missed->admission.cached_tokens, 0u);
    expect_same(*missed, alone(request(prompt)));
  }
  Request again = request(prompt);
  again.kv.salt = "s";
  const auto hit = e.submit(std::move(again));
  e.run();
  EXPECT_EQ(hit->admission.cached_tokens, 128u);  // its last block never became full
}

TEST(Engine, WriteNoneLeavesNoTrace) {
  TinyEngine e(tiny());
  Request r = request(text_of(100, 4));
  r.kv.write = KvWrite::none;
  e.submit(std::move(r));
  e.run();
  EXPECT_EQ(e.runtime->cache().stats().cached_blocks, 0u);
  r = request(text_of(100, 4), 64);
  r.kv.write = KvWrite::prompt;
  e.submit(std::move(r));
  e.run();
  EXPECT_EQ(e.runtime->cache().stats().indexed_blocks, 3u);
}

// Equal prompts that arrive together: one computes, the others wait and hit.
TEST(Engine, EqualPromptsInFlightAreComputedOnce) {
  TinyEngine e(tiny(), {}, {.step_tokens = 64});
  const std::vector<TokenId> prompt = text_of(320, 5);
  std::vector<std::shared_ptr<MemorySink>> sinks;
  for (int i = 0; i < 8; ++i) sinks.push_back(e.submit(request(prompt)));
  e.run();
  std::uint32_t computed = 0;
  for (const auto& s : sinks) {
    expect_same(*s, alone(request(prompt)));
    computed += s->result->computed_tokens;
  }
  EXPECT_LE(computed, 320u + 7 * 32);
  EXPECT_GE(e.engine->stats().prompt_tokens_waited, 7 * 288u);
  // Rows that really ran: the prompt once, a block's rest for each, and the answers.
  EXPECT_LE(e.engine->stats().step_rows, 320u + 7 * 32 + 8 * 8);
}

TEST(Engine, ACancelledLeaderStopsNobody) {
  TinyEngine e(tiny(), {}, {.step_tokens = 32});
  const std::vector<TokenId> prompt = text_of(400, 6);
  auto first = std::make_shared<MemorySink>(1), second = std::make_shared<MemorySink>(1);
  const JobId leader = e.submit(request(prompt), first);
  e.submit(request(prompt), second);
  for (int i = 0; i < 4; ++i) e.engine->step();
  EXPECT_EQ(second->admissions, 0);
  e.engine->cancel(leader);
  EXPECT_EQ(first->failure->kind, FailureKind::cancelled);
  e.engine->step();
  EXPECT_EQ(second->admissions, 1);
  EXPECT_EQ(second->admission.cached_tokens,
            96u);  // what the leader had finished: 32 + 3 * 24 rows
  e.run();
  expect_same(*second, alone(request(prompt)));
}

TEST(Engine, AFollowerDoesNotWaitForALeaderThatStandsStill) {
  TinyEngine e(tiny(), {}, {.step_tokens = 32, .follow_max = 0});
  const std::vector<TokenId> prompt = text_of(400, 7);
  auto first = e.submit(request(prompt)), second = e.submit(request(text_of(400, 7)));
  e.engine->step();
  EXPECT_EQ(second->admissions, 0);  // the leader takes all rows
  e.engine->step();
  EXPECT_EQ(second->admissions, 1);
  e.run();
  expect_same(*first, alone(request(prompt)));
  expect_same(*second, alone(request(prompt)));
}

TEST(Engine, AShortRequestNeedNotWaitUntilALongPromptIsRead) {
  TinyEngine e(tiny(), {}, {.step_tokens = 32});
  const auto slow = e.submit(request(text_of(2000, 8), 4));
  for (int i = 0; i < 5; ++i) e.engine->step();
  const auto quick = e.submit(request(text_of(5, 9), 1));
  for (int i = 0; i < 2; ++i) e.engine->step();
  EXPECT_TRUE(quick->result);
  EXPECT_FALSE(slow->result);
  e.run();
  EXPECT_TRUE(slow->result);
}

TEST(Engine, CancelFreesBlocksAtOnceWhereverItIs) {
  TinyEngine e(tiny(), {}, {.step_tokens = 32, .sequences_max = 4});
  for (const std::uint32_t steps : {0u, 1u, 2u, 5u, 9u}) {
    for (const std::uint32_t beams : {0u, 3u}) {
      Request r = request(text_of(90, 8 + steps), 30);
      r.choices = 3;
      r.beams = beams;
      auto sink = std::make_shared<MemorySink>(3);
      const JobId id = e.submit(std::move(r), sink);
      for (std::uint32_t i = 0; i < steps; ++i) e.engine->step();
      e.engine->cancel(id);
      EXPECT_TRUE(sink->failure);
      EXPECT_FALSE(e.engine->has_jobs());
      e.expect_empty();
      e.engine->cancel(id);  // a second time is nothing
    }
  }
}

TEST(Engine, EndTokensStopTokensAndLeastTokens) {
  TinyEngine e(tiny());
  const auto force = [&](TokenId token, std::uint32_t tokens_min) {
    Request r = request(text_of(40, 9), 10);
    r.ignore_end = false;
    r.stop_tokens = {'q'};
    r.tokens_min = tokens_min;
    r.sampling.logit_bias = {{token, 100.f}};
    const auto sink = e.submit(std::move(r));
    e.run();
    return sink;
  };
  for (const TokenId t : {kEnd, TokenId{'q'}}) {
    const auto at_once = force(t, 0), later = force(t, 4);
    EXPECT_EQ(at_once->answers[0].ids(), std::vector<TokenId>{t});
    EXPECT_EQ(at_once->answers[0].finish, Finish::end_token);
    ASSERT_EQ(later->answers[0].tokens.size(), 5u);
    EXPECT_EQ(later->answers[0].tokens[4].token, t);
    for (int i = 0; i < 4; ++i) EXPECT_NE(later->answers[0].tokens[i].token, t);
  }
  const auto plain = force('z', 0);
  EXPECT_EQ(plain->answers[0].tokens.size(), 10u);
  EXPECT_EQ(plain->answers[0].finish, Finish::length);
}

// Allows the bytes of a phrase, one after the other.
class PhraseMask : public TokenMask {
 public:
  explicit PhraseMask(std::string phrase) : phrase_(std::move(phrase)) {}
  bool fill(std::span<std::uint32_t> bits) override {
    std::ranges::fill(bits, 0u);
    for (const char c : {phrase_[at_], static_cast<char>(phrase_[at_] - 32)})
      bits[static_cast<unsigned char>(c) / 32] |= 1u << static_cast<unsigned char>(c) % 32;
    return true;
  }
  bool accept(TokenId token) override {
    EXPECT_TRUE(token == static_cast<TokenId>(phrase_[at_]) ||
                token == static_cast<TokenId>(phrase_[at_] - 32));
    return ++at_ < phrase_.size();
  }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<PhraseMask>(*this); }

 private:
  std::string phrase_;
  std::size_t at_ = 0;
};

TEST(Engine, AMaskHasItsWayInEveryChoice) {
  TinyEngine e(tiny());
  Request r = request(text_of(40, 10), 20);
  r.choices = 4;
  r.sampling = {.temperature = 2, .seed = 3};
  r.mask = std::make_unique<PhraseMask>("abracadabra");
  const auto sink = e.submit(std::move(r));
  e.run();
  std::set<std::string> different;
  for (const auto& answer : sink->answers) {
    EXPECT_EQ(answer.finish, Finish::mask);
    std::string text;
    for (const TokenId t : answer.ids()) text += static_cast<char>(t);
    different.insert(text);
    for (char& c : text) c |= 32;
    EXPECT_EQ(text, "abracadabra");
  }
  EXPECT_GT(different.size(), 1u);
}

TEST(Engine, BeamsAreThoseOfGenerate) {
  TinyEngine e(tiny(), {}, {.step_tokens = 32});
  std::vector<std::shared_ptr<MemorySink>> sinks;
  const auto make = [](std::uint32_t i) {
    Request r = request(text_of(50 + i, 11 + i), 6 + i);
    r.ignore_end = i % 2 == 0;
    r.beams = 2 + i;
    r.choices = 1 + i / 2;
    r.length_penalty = 0.5f * static_cast<float>(i);
    return r;
  };
  for (std::uint32_t i = 0; i < 4; ++i) sinks.push_back(e.submit(make(i)));
  e.run();
  for (std::uint32_t i = 0; i < 4; ++i) expect_same(*sinks[i], alone(make(i)));
  e.expect_empty();
}

TEST(Engine, ScoresThePromptWholeOrInChunks) {
  const std::vector<TokenId> prompt = text_of(150, 12);
  std::vector<std::vector<PromptLogprob>> all;
  for (const std::uint32_t step_tokens : {512u, 24u}) {
    TinyEngine e(tiny(), {}, {.step_tokens = step_tokens});
    for (const std::uint32_t tokens_max : {0u, 3u}) {
      Request r = request(prompt, tokens_max);
      r.prompt_logprobs = 2;
      const auto sink = e.submit(std::move(r));
      e.run();
      ASSERT_TRUE(sink->result);
      EXPECT_EQ(sink->answers[0].tokens.size(), tokens_max);
      EXPECT_EQ(sink->answers[0].finish, Finish::length);
      ASSERT_EQ(sink->scores.size(), prompt.size());
      all.push_back(sink->scores);
    }
  }
  TinyRuntime plain(tiny());
  for (std::size_t i = 1; i < prompt.size(); i += 7) {
    Sequence s = std::move(plain->empty_sequence(200).value());
    const StepItem item{&s, std::span(prompt).first(i), Logits::last};
    const std::span<float> logits = Stepper(*plain).run({&item, 1}).value();
    const auto logprob =
        static_cast<float>(logits[prompt[i]] - plain->sampler().log_sum_exp(logits));
    for (const auto& scores : all) {
      EXPECT_EQ(scores[i].token, prompt[i]);
      EXPECT_EQ(scores[i].logprob, logprob) << "token " << i;
      ASSERT_EQ(scores[i].alternatives.size(), 2u);
      EXPECT_EQ(scores[i].alternatives[0].token, std::ranges::max_element(logits) - logits.begin());
    }
  }
}

TEST(Engine, ReadingOnlyWarmsTheCacheAndTakesLeases) {
  TinyEngine e(tiny());
  Request r = request(text_of(128, 13), 0);
  r.kv.leases.push_back({.pin = true});
  const auto sink = e.submit(std::move(r));
  e.run();
  ASSERT_TRUE(sink->result);
  ASSERT_EQ(sink->result->leases.size(), 1u);
  const auto lease = e.runtime->cache().lease_info(sink->result->leases[0]);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease.value().tokens, 128u);
  EXPECT_TRUE(lease.value().pin);
  EXPECT_EQ(sink->result->node, lease.value().node);
  const auto hit = e.submit(request(text_of(128, 13), 1));
  e.run();
  EXPECT_EQ(hit->admission.cached_tokens, 127u);
}

TEST(Engine, StopsAChoiceThatIsFinishedOutside) {
  TinyEngine e(tiny());
  Request r = request(text_of(40, 14), 12);
  r.choices = 2;
  r.sampling = {.temperature = 1, .seed = 5};
  auto sink = std::make_shared<MemorySink>(2);
  const JobId id = e.submit(std::move(r), sink);
  for (int i = 0; i < 4; ++i) e.engine->step();
  e.engine->finish(id, 1);
  EXPECT_EQ(sink->answers[1].finish, Finish::stop_string);
  e.engine->finish(id, 1);
  e.engine->finish(id, 7);
  e.run();
  EXPECT_EQ(sink->answers[0].tokens.size(), 12u);
  EXPECT_EQ(sink->answers[1].tokens.size(), 4u);
  e.expect_empty();
}

TEST(Engine, TheCostOfAPromptTokenIsMeasuredWhereOneIsRead) {
  TinyEngine e(tiny(), {}, {.step_tokens = 256});
  for (int i = 0; i < 80; ++i) e.submit(request(text_of(3, 200 + i), 30));  // too short to tell
  for (int i = 0; i < 5; ++i) e.engine->step();
  const double before = e.log.token_seconds;
  for (int i = 0; i < 20; ++i) e.engine->step();  // 64 and more rows, all of answers
  EXPECT_EQ(e.log.token_seconds, before);
  e.submit(request(text_of(2000, 5)));
  e.run();
  EXPECT_GT(e.log.token_seconds, 0);
  EXPECT_NE(e.log.token_seconds, before);
}

TEST(Engine, ADeadlineEndsWhatTakesTooLong) {
  TinyEngine e(tiny(), {}, {.sequences_max = 1});
  Request slow = request(text_of(40, 15), 2000);
  slow.deadline = 20'000'000;
  Request queued = request(text_of(40, 16), 5);
  queued.deadline = 1;
  const auto a = e.submit(std::move(slow)), b = e.submit(std::move(queued));
  e.run();
  EXPECT_EQ(a->failure->kind, FailureKind::deadline);
  EXPECT_EQ(b->failure->kind, FailureKind::deadline);
  EXPECT_EQ(b->admissions, 0);
  e.expect_empty();
}

Failure refusal(TinyEngine& e, Request r) {
  return prepare_job(*e.runtime, e.options, std::move(r), nullptr).failure;
}

// Four answers of sixteen choices take every place that there is, for as long as they like.
TEST(Engine, ATenantCannotTakeEveryPlace) {
  TinyEngine e(tiny(), {}, {.sequences_max = 8, .sequences_max_per_tenant = 6});
  const auto ask = [&](const char* tenant, std::uint32_t choices, std::uint32_t tokens) {
    Request r{.prompt = byte_tokens("Who is it?"), .tokens_max = tokens, .ignore_end = true};
    r.choices = choices;
    r.kv.tenant = tenant;
    return e.submit(std::move(r));
  };
  std::vector<std::shared_ptr<MemorySink>> greedy;
  for (int i = 0; i < 4; ++i) greedy.push_back(ask("greedy", 2, 300));
  for (int i = 0; i < 10; ++i) e.engine->step();
  const auto other = ask("other", 2, 1);
  for (int i = 0; i < 5; ++i) e.engine->step();
  EXPECT_TRUE(other->result);
  EXPECT_FALSE(greedy[0]->result);
  const auto wide =
      ask("wide", 8, 3);  // one that is wider than a share waits for its place, and runs
  e.run();
  EXPECT_TRUE(wide->result);
  for (const auto& sink : greedy) EXPECT_TRUE(sink->result);
  e.expect_empty();
}

TEST(Engine, WhoHasNoPlaceGetsOneFromWhoHasAll) {
  TinyEngine e(tiny(), {}, {.sequences_max = 8});
  const auto ask = [&](const char* client, std::uint64_t seed, std::uint32_t tokens) {
    Request r = request(text_of(40, seed), tokens);
    r.client = client;
    return r;
  };
  std::vector<std::shared_ptr<MemorySink>> greedy;
  for (std::uint64_t i = 0; i < 12; ++i) greedy.push_back(e.submit(ask("greedy", i, 200)));
  for (int i = 0; i < 20; ++i) e.engine->step();
  EXPECT_EQ(e.engine->stats().preemptions_parked + e.engine->stats().preemptions_recompute, 0u);
  const auto other = e.submit(ask("other", 99, 1));
  for (int i = 0; i < 5; ++i) e.engine->step();
  EXPECT_TRUE(other->result);
  EXPECT_FALSE(greedy[0]->result);
  e.run();
  for (std::uint64_t i = 0; i < greedy.size(); ++i) {
    TinyEngine alone(tiny());
    const auto answer = alone.submit(ask("greedy", i, 200));
    alone.run();
    EXPECT_EQ(greedy[i]->answers[0].ids(), answer->answers[0].ids());
  }
  e.expect_empty();
}

TEST(PrepareJob, RefusesWhatCanNeverRun) {
  TinyEngine e(tiny(), {.kv_cache_bytes = 2 << 20, .context = 3000}, {.sequences_max = 8});
  EXPECT_EQ(refusal(e, request({}, 5)).kind, FailureKind::invalid);
  EXPECT_EQ(refusal(e, request({9999}, 5)).kind, FailureKind::invalid);
  Request r = request(text_of(10, 1));
  r.choices = 9;
  EXPECT_THAT(refusal(e, std::move(r)).message, HasSubstr("1 to 8"));
  r = request(text_of(10, 1), 4);
  r.tokens_min = 5;
  EXPECT_EQ(refusal(e, std::move(r)).kind, FailureKind::invalid);

  EXPECT_EQ(refusal(e, request(text_of(3000, 1), 1)).kind, FailureKind::context_length);
  EXPECT_EQ(refusal(e, request(text_of(3000, 1), 0)).kind, FailureKind::none);
  EXPECT_EQ(refusal(e, request(text_of(2000, 1), 1001)).kind, FailureKind::context_length);
  r = request(text_of(2000, 1), 1 << 30);
  r.cut_tokens_max = true;
  PreparedJob p = prepare_job(*e.runtime, e.options, std::move(r), nullptr);
  ASSERT_TRUE(p.job);
  EXPECT_EQ(p.job->request.tokens_max, 1000u);

  // 128 blocks of 32 tokens: 8 answers of 2,000 tokens do not fit, and cut they are shorter.
  r = request(text_of(100, 1), 2000);
  r.choices = 8;
  const Failure f = refusal(e, std::move(r));
  EXPECT_EQ(f.kind, FailureKind::kv_capacity);
  EXPECT_THAT(f.message, HasSubstr("2097152"));
  r = request(text_of(100, 1), 2000);
  r.choices = 8;
  r.cut_tokens_max = true;
  p = prepare_job(*e.runtime, e.options, std::move(r), nullptr);
  ASSERT_TRUE(p.job);
  EXPECT_GT(p.job->request.tokens_max, 400u);
  EXPECT_LT(p.job->request.tokens_max, 500u);
}

// What is cut to fit really runs to its end, alone.
TEST(Engine, WhatWasCutToFitFits) {
  for (const char* architecture : {"llama", "gemma3"}) {
    TinyOptions model = tiny();
    model.architecture = architecture;
    const bool windows = model.architecture == "gemma3";  // blocks of two sizes
    if (windows) model.layers = 7, model.kv_heads = 4, model.head_dim = 32;
    TinyEngine e(model, {.kv_cache_bytes = (windows ? 10u : 2u) << 20}, {.step_tokens = 128});
    Request r = request(text_of(333, 1), 1 << 20);
    r.choices = 5;
    r.sampling = {.temperature = 1, .seed = 2};
    r.cut_tokens_max = true;
    const auto sink = e.submit(std::move(r));
    e.run();
    EXPECT_TRUE(sink->result) << architecture << ": " << sink->failure->message;
    e.expect_empty();
  }
}

TEST(Engine, PinsThatLeaveNoRoomAreAnErrorNotAHang) {
  TinyEngine e(tiny(), {.kv_cache_bytes = 2 << 20});
  Request pin = request(text_of(2000, 30), 0);
  pin.kv.leases.push_back({.pin = true});
  e.submit(std::move(pin));
  e.run();
  const auto sink = e.submit(request(text_of(3000, 31), 100));
  e.run();
  ASSERT_TRUE(sink->failure);
  EXPECT_EQ(sink->failure->kind, FailureKind::no_room);
  const auto small = e.submit(request(text_of(500, 32), 10));
  e.run();
  EXPECT_TRUE(small->result);
}

TEST(Engine, ExplainsWhereAPromptParted) {
  TinyEngine e(tiny());
  std::vector<TokenId> prompt = text_of(300, 40);
  const auto submit = [&](const std::string& id) {
    Request r = request(prompt, 2);
    r.id = id;
    r.segments = {{"system[0]", 0, 120}, {"messages[0]", 120, 300}};
    e.submit(std::move(r));
    e.run();
    return *e.log.explain(id, e.runtime->cache().journal());
  };
  const Explanation first = submit("a");
  EXPECT_EQ(first.outcome, Outcome::miss);
  EXPECT_EQ(first.reason, Reason::never_seen);
  EXPECT_EQ(first.segment, "system[0]");

  const Explanation again = submit("b");
  EXPECT_EQ(again.outcome, Outcome::hit);
  EXPECT_EQ(again.cached_tokens, 288u);

  prompt[100] = '!';
  const Explanation changed = submit("c");
  EXPECT_EQ(changed.outcome, Outcome::partial_hit);
  EXPECT_EQ(changed.reason, Reason::tokens_diverged);
  EXPECT_EQ(changed.cached_tokens, 100u);
  EXPECT_EQ(changed.at_token, 100u);
  EXPECT_EQ(changed.block, 3u);
  EXPECT_EQ(changed.segment, "system[0]");
  EXPECT_EQ(changed.compared_to, "b");
  EXPECT_EQ(changed.shared_prefix_tokens, 100u);
  ASSERT_EQ(changed.now.size(), 12u);
  EXPECT_EQ(changed.now[4], TokenId{'!'});
  EXPECT_NE(changed.was[4], TokenId{'!'});
  ASSERT_EQ(changed.segments.size(), 2u);
  EXPECT_EQ(changed.segments[0].cached, 100u);
  EXPECT_EQ(changed.segments[1].cached, 0u);
  ASSERT_EQ(changed.alternatives.size(), 1u);
  EXPECT_EQ(changed.alternatives[0].would_cache, 288u);
  const auto said = [&](Reason reason) {
    return std::ranges::any_of(changed.events,
                               [&](const JournalRecord& j) { return j.reason == reason; });
  };
  EXPECT_TRUE(said(Reason::admitted) && said(Reason::hit_partial) && said(Reason::finished));

  EXPECT_EQ(changed.alternatives[0].kind, Explanation::Alternative::Kind::move_text);
  EXPECT_EQ(changed.alternatives[0].token, 299u);  // where the text that did not change would end
  EXPECT_EQ(changed.changed_segment, "system[0]");
  EXPECT_TRUE(changed.reused_all);
  const std::vector<std::string> nobody{"x", "y"}, first_one{"x", "a"};
  EXPECT_TRUE(e.log.explain("c", e.runtime->cache().journal(), nobody)->compare_missing);
  EXPECT_EQ(e.log.explain("c", e.runtime->cache().journal(), first_one)->compared_to, "a");

  e.runtime->cache().clear();
  const Explanation cleared = submit("d");
  EXPECT_EQ(cleared.outcome, Outcome::miss);
  EXPECT_EQ(cleared.reason, Reason::cleared);
  ASSERT_EQ(cleared.alternatives.size(), 1u);
  EXPECT_EQ(cleared.alternatives[0].kind, Explanation::Alternative::Kind::pin);
  EXPECT_FALSE(cleared.reused_all);
  EXPECT_EQ(e.log.find("a")->done.prompt_tokens, 300u);
  EXPECT_FALSE(e.log.explain("nobody", e.runtime->cache().journal()));
}

TEST(Engine, TellsAnExplanationWhenItAdmits) {
  TinyEngine e(tiny());
  std::vector<TokenId> prompt = text_of(300, 41);
  const auto submit = [&](const std::string& id, const std::string& salt) {
    Request r = request(prompt, 1);
    r.id = id;
    r.segments = {{"system[0]", 0, 120}, {"messages[0]", 120, 300}};
    r.kv.salt = salt;
    r.explain = true;
    if (id != "a") r.compare_to = {"nobody", "a"};
    const auto sink = e.submit(std::move(r));
    e.run();
    return *sink->admission.explanation;
  };
  submit("a", "");
  EXPECT_EQ(submit("b", "").outcome, Outcome::hit);
  const Explanation salted = submit("c", "s");
  EXPECT_EQ(salted.reason, Reason::salt_mismatch);
  EXPECT_TRUE(salted.other_salt);
  ASSERT_EQ(salted.alternatives.size(), 1u);
  EXPECT_EQ(salted.alternatives[0].kind, Explanation::Alternative::Kind::same_salt);
  EXPECT_EQ(salted.alternatives[0].would_cache, 288u);
  prompt[200] = '!';
  const Explanation other = submit("d", "t");  // words of another salt are not shown
  EXPECT_TRUE(other.was.empty() && other.now.empty());
  EXPECT_EQ(submit("e", "").changed_segment, "messages[0]");
}

// Where two prompts part says little of which part of the conversation is another one.
TEST(Engine, TellsWhichPartsDiffer) {
  TinyEngine e(tiny());
  const std::vector<TokenId> system = text_of(60, 1), tools = text_of(60, 2), ask = text_of(60, 3);
  int count = 0;
  const auto submit = [&](std::vector<TokenId> s, std::vector<TokenId> t) {
    Request r = request(s, 1);
    r.prompt.insert(r.prompt.end(), t.begin(), t.end());
    r.prompt.insert(r.prompt.end(), ask.begin(), ask.end());
    const auto a = static_cast<std::uint32_t>(s.size());
    const auto b = static_cast<std::uint32_t>(s.size() + t.size());
    r.segments = {{"system[0]", 0, a}};
    if (!t.empty()) r.segments.push_back({"tools", a, b});
    r.segments.push_back({"messages[0]", b, b + 60});
    r.id = std::to_string(count++);
    r.explain = true;
    if (count > 1) r.compare_to = {"0"};
    const auto sink = e.submit(std::move(r));
    e.run();
    const Explanation& told = *sink->admission.explanation;
    return std::pair{told.other_tools, told.other_system};
  };
  const auto changed = [](std::vector<TokenId> text, std::size_t at) {
    text[at] = text[at] == 'x' ? 'y' : 'x';
    return text;
  };
  using Parts = std::pair<bool, bool>;
  submit(system, tools);
  EXPECT_EQ(submit(system, tools), Parts(false, false));
  EXPECT_EQ(submit(changed(system, 30), tools), Parts(false, true));
  EXPECT_EQ(submit(changed(system, 30), changed(tools, 30)), Parts(true, true));
  EXPECT_EQ(submit(system, changed(tools, 30)), Parts(true, false));
  EXPECT_EQ(submit(system, {}), Parts(true, false));
  EXPECT_EQ(submit(system, changed(tools, 0)), Parts(false, false));  // an edge
}

// A prompt of many short messages has as many segments.
TEST(RequestLog, WhatItHoldsIsBounded) {
  RequestLog log(1000, 100'000);
  for (std::uint64_t n = 1; n <= 500; ++n) {
    RequestRecord r{.number = n, .id = std::to_string(n)};
    r.prompt.resize(100);
    r.segments.resize(4000, {"messages[1000]", 0, 1});
    r.keys.resize(1000);
    log.add(std::move(r));
  }
  EXPECT_LE(log.held(), 100'000u);
  EXPECT_EQ(log.find(500)->segments.size(), 4000u);
  EXPECT_TRUE(log.find(1)->segments.empty());
}

TEST(RequestLog, ForgetsTheOldest) {
  RequestLog log(4, 100);
  for (std::uint64_t i = 0; i < 10; ++i) {
    Request r = request(text_of(40, i));
    r.id = "r" + std::to_string(i % 7);
    RequestRecord record = make_record(r);
    record.number = i;
    log.add(std::move(record));
  }
  EXPECT_EQ(log.find("r5"), nullptr);
  EXPECT_EQ(log.find(5), nullptr);
  ASSERT_NE(log.find("r2"), nullptr);
  EXPECT_EQ(log.find("r2")->number, 9u);
  ASSERT_EQ(log.latest(10).size(), 4u);
  EXPECT_EQ(log.latest(10)[0]->number, 9u);
  EXPECT_EQ(log.latest(10)[3]->number, 6u);
  EXPECT_TRUE(log.find(6)->prompt.empty());  // 100 tokens hold two prompts of 40
  EXPECT_EQ(log.find(6)->prompt_tokens, 40u);
  EXPECT_EQ(log.find(9)->prompt.size(), 40u);
}

}  // namespace
}  // namespace quire
