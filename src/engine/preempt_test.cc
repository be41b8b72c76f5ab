// Who gives way when memory is short: how often, in which way, and that it changes no answer.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "engine/engine_testing.h"

namespace quire {
namespace {

void expect_as_alone(const MemorySink& sink, const Request& r) {
  static TinyRuntime runtime(tiny());
  ASSERT_TRUE(sink.result) << (sink.failure ? sink.failure->message : "not over");
  auto alone = naive_generate(*runtime, r.prompt, alone_options(r));
  ASSERT_TRUE(alone.ok()) << alone.error().message;
  for (std::size_t c = 0; c < sink.answers.size(); ++c)
    EXPECT_EQ(sink.answers[c].ids(), alone.value().answers[c].tokens) << "choice " << c;
}

TEST(Preempt, ChangesNoAnswer) {
  TinyEngine e(tiny(), {.kv_cache_bytes = 2 << 20}, {.step_tokens = 256});
  std::vector<std::shared_ptr<MemorySink>> sinks;
  const auto make = [](std::uint32_t i) {
    Request r = request(text_of(100 + 7 * i, 20 + i), 300);  // 12 x 400 tokens; 4096 fit
    r.sampling = {.temperature = i % 2 ? 1.f : 0.f, .seed = i};
    r.choices = 1 + i % 2;
    if (i % 4 == 3) r.kv.write = KvWrite::none;
    return r;
  };
  for (std::uint32_t i = 0; i < 12; ++i) sinks.push_back(e.submit(make(i)));
  e.run();
  std::uint32_t preemptions = 0;
  for (std::uint32_t i = 0; i < 12; ++i) {
    expect_as_alone(*sinks[i], make(i));
    EXPECT_LE(sinks[i]->result->preemptions, 5u);
    preemptions += sinks[i]->result->preemptions;
  }
  EXPECT_GT(preemptions, 0u);
  const ServiceStats& s = e.engine->stats();
  EXPECT_GT(s.preemptions_parked + s.preemptions_recompute, 0u);
  e.expect_empty();
}

// A request of low priority against others that never end to come, each of which grows until there
// is no room for it: it gives way as often as it may, then it is let finish.
TEST(Preempt, NobodyGivesWayMoreThanFiveTimes) {
  const auto preemptions_of_last = [](std::uint32_t preemptions_max) {
    TinyEngine e(tiny(), {.kv_cache_bytes = 2 << 20},
                 {.step_tokens = 256, .preemptions_max = preemptions_max});
    const auto low = [] { return request(text_of(64, 1), 2000); };
    const auto make = [](std::uint64_t i) {
      Request r = request(text_of(64, 100 + i), 900 + 50 * (i % 5));
      r.priority = 1'000'000;  // longer ago than anybody waits here
      return r;
    };
    const auto sink = e.submit(low());
    std::vector<std::shared_ptr<MemorySink>> others;
    std::size_t over = 0;
    for (int steps = 0; !sink->over() && steps < 40000; ++steps) {
      over = static_cast<std::size_t>(
          std::ranges::count_if(others, [](const auto& other) { return other->over(); }));
      while (others.size() < over + 5) others.push_back(e.submit(make(others.size())));
      EXPECT_TRUE(e.engine->step());
    }
    EXPECT_TRUE(sink->over()) << "it never came to its end";
    if (preemptions_max == 5) {
      expect_as_alone(*sink, low());
      e.run();
      for (std::size_t i = 0; i < others.size(); ++i) expect_as_alone(*others[i], make(i));
      e.expect_empty();
    }
    return sink->result ? sink->result->preemptions : 0;
  };
  EXPECT_EQ(preemptions_of_last(5), 5u);
  EXPECT_EQ(preemptions_of_last(2), 2u);
  EXPECT_GT(preemptions_of_last(1000), 5u);  // so that it was the bound that held
}

// An answer needs its next block, and there is none; the other is nearly at its end and needs no
// more. None of its blocks is published, so that it had better keep them.
TEST(Preempt, ParksWhatWouldBeComputedAgainForNothing) {
  const auto rows = [](std::optional<Preempt> how) {
    TinyEngine e(tiny(), {.kv_cache_bytes = 2 << 20}, {.step_tokens = 256, .preempt = how});
    const auto make = [](std::uint32_t prompt, std::uint32_t answer) {
      Request r = request(text_of(prompt, prompt), answer);
      r.kv.write = KvWrite::none;
      return r;
    };
    const auto first = e.submit(make(64, 670)), second = e.submit(make(2720, 800));
    e.run();
    expect_as_alone(*first, make(64, 670));
    expect_as_alone(*second, make(2720, 800));
    EXPECT_EQ(second->result->preemptions, 1u);
    const ServiceStats& s = e.engine->stats();
    EXPECT_EQ(s.preemptions_parked, how == Preempt::recompute ? 0u : 1u);
    return s.step_rows;
  };
  const std::uint64_t parked = rows(Preempt::park), recomputed = rows(Preempt::recompute);
  EXPECT_EQ(parked, 64u + 670 - 1 + 2720 + 800 - 1);  // nothing twice
  EXPECT_GT(recomputed, parked + 2720);
  EXPECT_EQ(rows({}), parked);
}

// A job with three answers gives way to one that needs most of the memory, and loses its blocks. Its
// prompt fits once besides its answers, and not three times.
void expect_three_answers_again(std::shared_ptr<const RetainPolicy> retain, std::uint32_t beams) {
  const std::uint32_t times = retain ? 2 : 1;  // a budget's pages take a slab of their own
  TinyEngine e(tiny(), {.kv_cache_bytes = times * (2 << 20)},
               {.step_tokens = 256, .preempt = Preempt::recompute});
  const auto low = [&] {
    Request r = request(text_of(retain ? 2500 : 1500, 1), 400);
    r.choices = 3;
    r.beams = beams;
    r.ignore_end = true;
    if (beams == 0) r.sampling = {.temperature = 1, .seed = 7};
    r.kv.write = KvWrite::none;  // nothing in the index that its answers could share
    r.kv.retain = retain;
    return r;
  };
  const auto sink = e.submit(low());
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(e.engine->step());
  EXPECT_FALSE(sink->over());
  std::vector<std::shared_ptr<MemorySink>> others;
  for (std::uint32_t i = 0; i < 2; ++i) {
    Request high = request(text_of(retain ? 2500 : 2000, 2 + i), 900);
    high.priority = 1'000'000;
    others.push_back(e.submit(std::move(high)));
  }
  e.run();
  for (const auto& other : others) EXPECT_TRUE(other->result);
  ASSERT_TRUE(sink->result) << (sink->failure ? sink->failure->message : "not over");
  EXPECT_GT(sink->result->preemptions, 0u);

  TinyEngine large(tiny(), {.kv_cache_bytes = 16 << 20}, {});
  const auto alone = large.submit(low());
  large.run();
  for (std::size_t c = 0; c < 3; ++c)
    EXPECT_EQ(sink->answers[c].ids(), alone->answers[c].ids()) << c;
  e.expect_empty();
}

TEST(Preempt, AnswersThatLeaveNothingShareTheirPromptAgain) {
  expect_three_answers_again(nullptr, 0);
  expect_three_answers_again(nullptr, 3);
}

TEST(Preempt, AnswersThatCannotShareFinishOneByOne) {
  // A budget that drops nothing: the program looks at the prompt, and each answer has its own.
  expect_three_answers_again(
      std::make_shared<const RetainPolicy>(parse_retain_policy("snapkv:3200").value()), 0);
}

// A prompt without an answer is over when its budget has looked at it. It gives way before that, and all
// of it is cached when it comes back: there is nothing left to read.
TEST(Preempt, APromptWithoutAnAnswerEndsThoughItGaveWay) {
  TinyEngine e(tiny(), {}, {.sequences_max = 4, .preempt = Preempt::recompute});
  std::vector<std::shared_ptr<MemorySink>> others;
  for (std::uint32_t i = 0; i < 3; ++i) others.push_back(e.submit(request(text_of(40, i), 200)));
  Request warm = request(text_of(640, 7), 0);
  warm.kv.retain = std::make_shared<const RetainPolicy>(parse_retain_policy("kvzip:100").value());
  warm.kv.leases.push_back({.pin = true});
  warm.prompt_logprobs = 0;
  warm.prompt_logprobs_from = 600;
  const auto sink = e.submit(std::move(warm));
  const auto is_looked_at = [&] {
    const std::vector<ActiveRequest> all = e.engine->active();
    return all.size() == 4 && all[3].state == ActiveRequest::State::answering;
  };
  for (int i = 0; i < 60 && !is_looked_at(); ++i) EXPECT_TRUE(e.engine->step());
  ASSERT_TRUE(is_looked_at()) << "its budget was done at once";
  Request other = request(text_of(40, 9), 4);
  other.kv.tenant = "other";  // has no place, and takes one
  others.push_back(e.submit(std::move(other)));
  e.run();
  ASSERT_TRUE(sink->result) << "it never ended";
  EXPECT_EQ(sink->result->leases.size(), 1u);
  EXPECT_EQ(sink->scores.size(), 640u);
  for (const auto& s : others) EXPECT_TRUE(s->result);
  for (const LeaseId lease : sink->result->leases)
    EXPECT_TRUE(e.runtime->cache().release(lease).ok());
  EXPECT_EQ(e.runtime->cache().stats().leases, 0u);  // it was taken once
  e.expect_empty();
}

}  // namespace
}  // namespace quire
