// Answers with drafts are those without, bit for bit, whatever the drafts say.
#include <gtest/gtest.h>

#include "engine/draft/testing.h"
#include "engine/engine_testing.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

using Asking = std::function<void(Request&)>;

struct Case {
  const char* name;
  Asking asks = [](Request&) {};
  RuntimeOptions opened = {};
  bool drafts = true;  // that there are some
};

TinyOptions drafted_model() { return {.type = DType::q8_0, .layers = 3, .head_dim = 32}; }

// Lets every other token through, by the answer so far, and ends some answers.
class OddMask final : public TokenMask {
 public:
  bool fill(std::span<std::uint32_t> bits) override {
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = static_cast<std::uint32_t>(mix64(state_ + i));
    return state_ % 3 != 0;
  }
  bool accept(TokenId token) override {
    state_ = mix64(state_ ^ token);
    return state_ % 40 != 1;
  }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<OddMask>(*this); }

 private:
  std::uint64_t state_ = 5;
};

std::shared_ptr<const RetainPolicy> kept(std::string_view text) {
  return std::make_shared<RetainPolicy>(parse_retain_policy(text).value());
}

RuntimeOptions stored_as(const char* format, std::uint32_t recent = 0, std::uint32_t sinks = 0) {
  return {
      .kv_format = format, .kv_recent_exact = recent, .kv_sinks = sinks, .tokens_per_block = 16};
}

Asking budget(const char* text) {
  return [text](Request& r) { r.kv.retain = kept(text); };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = {
      {"greedy"},
      {"sampled", [](Request& r) { r.sampling = {.temperature = 1, .top_p = 0.9f, .seed = 3}; }},
      {"penalties",
       [](Request& r) {
         r.sampling = {
             .repetition_penalty = 1.4f, .presence_penalty = 0.3f, .frequency_penalty = 0.4f};
       }},
      {"logprobs", [](Request& r) { r.sampling.logprobs = 4; }},
      {"n",
       [](Request& r) {
         r.choices = 3;
         r.sampling = {.temperature = 1.2f, .seed = 8};
       }},
      {"mask", [](Request& r) { r.mask = std::make_unique<OddMask>(); }},
      {"mask and sampled",
       [](Request& r) {
         r.mask = std::make_unique<OddMask>();
         r.sampling = {.temperature = 1, .repetition_penalty = 1.2f, .seed = 4};
         r.choices = 2;
       }},
      {"end tokens",
       [](Request& r) {
         r.ignore_end = false;
         r.stop_tokens = {'a', 'e', 'i', 'o', 'u', 1, 2, 3, 4, 5, 6, 7, 8, 9};
         r.tokens_min = 20;
         r.sampling = {.temperature = 1, .seed = 1};
       }},
      {"write none", [](Request& r) { r.kv.write = KvWrite::none; }},
      {"beams", [](Request& r) { r.beams = 3; }, {}, false},
  };
  for (const char* format :
       {"f32", "bf16", "int8", "hadamard-int4", "kivi-2", "minicache", "turbo-3", "nvfp4"})
    cases.push_back({format, [](Request&) {}, stored_as(format)});
  cases.push_back({"recent rows", [](Request&) {}, stored_as("int8", 32)});
  cases.push_back({"sinks", [](Request&) {}, stored_as("hadamard-int4", 0, 16)});
  for (const char* text :
       {"streaming:40", "window:40", "h2o:40", "keydiff:48,every=16", "snapkv:40%", "kvzip:50%"})
    cases.push_back({text, budget(text)});
  cases.push_back({"tova:40", budget("tova:40"), {}, false});  // looks at the last query
  return cases;
}

Request asked(const Case& c, std::uint64_t seed) {
  Request r = request(printable_of(50 + 7 * seed, seed), 70);
  c.asks(r);
  return r;
}

struct Answered {
  std::vector<std::shared_ptr<MemorySink>> sinks;
  std::vector<std::uint32_t> cached;  // tokens of each answer that are left for others
  DraftTally tally;
  std::uint64_t steps = 0;
};

// Three requests at once.
Answered answer(const Case& c, const DraftOptions& drafts) {
  TinyEngine e(drafted_model(), c.opened, {.step_tokens = 200, .drafts = drafts});
  Answered got;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) got.sinks.push_back(e.submit(asked(c, seed)));
  e.run();
  got.steps = e.engine->stats().steps;
  got.tally = e.engine->stats().drafts[0];
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    for (const MemorySink::Answer& told : got.sinks[seed - 1]->answers) {
      std::vector<TokenId> all = asked(c, seed).prompt;
      for (const Choice& choice : told.tokens) all.push_back(choice.token);
      Sequence s = std::move(e.runtime->open_sequence(all.size() + 1).value());
      got.cached.push_back(e.runtime->cache().attach(s, all).tokens);
    }
  e.engine->drop_snapshots();
  e.expect_empty();
  return got;
}

void expect_same(const Answered& got, const Answered& wanted) {
  for (std::size_t i = 0; i < wanted.sinks.size(); ++i) {
    ASSERT_TRUE(got.sinks[i]->result);
    for (std::size_t c = 0; c < wanted.sinks[i]->answers.size(); ++c) {
      const MemorySink::Answer &a = got.sinks[i]->answers[c], &b = wanted.sinks[i]->answers[c];
      ASSERT_EQ(a.ids(), b.ids());
      EXPECT_EQ(a.finish, b.finish);
      for (std::size_t t = 0; t < a.tokens.size(); ++t) {
        EXPECT_EQ(a.tokens[t].logprob, b.tokens[t].logprob);
        ASSERT_EQ(a.tokens[t].alternatives.size(), b.tokens[t].alternatives.size());
        for (std::size_t k = 0; k < a.tokens[t].alternatives.size(); ++k) {
          EXPECT_EQ(a.tokens[t].alternatives[k].token, b.tokens[t].alternatives[k].token);
          EXPECT_EQ(a.tokens[t].alternatives[k].logprob, b.tokens[t].alternatives[k].logprob);
        }
      }
    }
  }
  EXPECT_EQ(got.cached, wanted.cached);
}

std::shared_ptr<Prophet::Texts> texts_of(const Case& c, const Answered& answers) {
  auto texts = std::make_shared<Prophet::Texts>();
  for (std::uint64_t seed = 1; seed <= answers.sinks.size(); ++seed)
    for (const MemorySink::Answer& told : answers.sinks[seed - 1]->answers) {
      texts->push_back(asked(c, seed).prompt);
      for (const TokenId t : told.ids()) texts->back().push_back(t);
    }
  return texts;
}

TEST(Drafts, ChangeNoAnswer) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const Answered plain = answer(c, {});
    EXPECT_EQ(plain.tally.drafts, 0u);
    const auto texts = texts_of(c, plain);
    for (const double lies : {0.0, 0.2, 1.0}) {
      SCOPED_TRACE(lies);
      const DraftOptions drafts{
          .tokens_max = 24, .adaptive = false, .source = [&](const DraftScene&) {
            return std::make_unique<Prophet>(
                texts, Prophet::Lies{.often = lies, .least = 32, .count = 90}, Random(9));
          }};
      const Answered got = answer(c, drafts);
      expect_same(got, plain);
      EXPECT_EQ(got.tally.drafts > 0, c.drafts);
      EXPECT_TRUE(got.tally.accepted > 0 || !c.drafts || lies == 1);
      EXPECT_TRUE(!c.drafts || lies > 0 || got.steps < plain.steps * 3 / 4);
    }
  }
}

TEST(Drafts, OfEverySourceChangeNoAnswer) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const Answered plain = answer(c, {});
    for (const bool adaptive : {false, true})
      expect_same(answer(c, {.sources = 0xf, .adaptive = adaptive, .lookup_min = 1}), plain);
  }
}

// A guess whose numbers are not finite ends nothing: nobody would have made it.
TEST(Drafts, ABrokenGuessBreaksNothing) {
  const TinyOptions model{.layers = 2, .head_dim = 32, .tied_head = false, .broken = true};
  for (const char* format : {"f16", "f32", "int8"}) {
    SCOPED_TRACE(format);
    const auto run = [&](const DraftOptions& drafts) {
      TinyEngine e(model, {.kv_format = format}, {.step_tokens = 64, .drafts = drafts});
      const auto sink = e.submit(request(printable_of(60, 5), 24));
      e.run();
      EXPECT_TRUE(sink->result);
      e.expect_empty();
      return sink->answers[0].ids();
    };
    const auto texts = std::make_shared<Prophet::Texts>();
    const DraftOptions broken{.adaptive = false, .source = [&](const DraftScene&) {
                                return std::make_unique<Prophet>(
                                    texts, Prophet::Lies{.often = 1, .least = 7, .count = 1},
                                    Random(1));
                              }};
    EXPECT_EQ(run(broken), run({}));
  }
}

// A cache that is too small for all: drafts find no room, and nobody gives way for them.
TEST(Drafts, NobodyGivesWayForADraft) {
  const auto run = [&](const DraftOptions& drafts) {
    TinyEngine e(tiny(), {.kv_cache_bytes = 2 << 20}, {.step_tokens = 256, .drafts = drafts});
    std::vector<std::shared_ptr<MemorySink>> sinks;
    for (std::uint64_t i = 0; i < 16; ++i) sinks.push_back(e.submit(request(text_of(90, i), 300)));
    e.run();
    std::vector<std::vector<TokenId>> all;
    for (const auto& sink : sinks) {
      EXPECT_TRUE(sink->result) << (sink->failure ? sink->failure->message : "");
      all.push_back(sink->answers[0].ids());
    }
    e.expect_empty();
    EXPECT_GT(e.engine->stats().preemptions_recompute + e.engine->stats().preemptions_parked, 0u);
    return all;
  };
  EXPECT_EQ(run({.sources = 0xf, .adaptive = false, .lookup_min = 1}), run({}));
}

}  // namespace
}  // namespace quire
