// Retention end to end, on tiny models.
#include "engine/retain.h"

#include <gtest/gtest.h>

#include "base/sanitized.h"
#include "engine/engine_testing.h"
#include "engine/lane_rows.h"
#include "engine/testing.h"

namespace quire {
namespace {

std::shared_ptr<const RetainPolicy> policy(std::string_view text) {
  auto made = parse_retain_policy(text);
  EXPECT_TRUE(made.ok()) << text << ": " << (made.ok() ? "" : made.error().message);
  return std::make_shared<RetainPolicy>(made.value());
}

TinyOptions llama() { return {.type = DType::q8_0, .layers = 3, .head_dim = 64}; }

// What a policy leaves of a prompt read in chunks, and the logits of tokens after it.
struct KeptRead {
  std::vector<std::vector<std::uint32_t>> kept;  // by lane
  std::vector<std::vector<float>> logits;
  int parts = 0;  // in which it was decided
};

// `part` > 0: what is due is decided in parts of so many rows' work.
KeptRead run(Runtime& r, std::shared_ptr<const RetainPolicy> p, std::span<const TokenId> prompt,
             std::span<const TokenId> answer, std::uint32_t chunk, double part = 0) {
  KeptRead out;
  const RootId root = r.tenant_root("").value();
  std::optional<Retaining> retaining;
  if (p) retaining.emplace(r, p, prompt.size(), root);
  Retaining* const retain = retaining ? &*retaining : nullptr;
  Sequence s = std::move(r.cache()
                             .open({.root = root,
                                    .token_capacity = 4096,
                                    .reuse = false,
                                    .publish = false,
                                    .recomputable = p == nullptr})
                             .value());
  r.cache().attach(s, prompt);
  while (s.length() < prompt.size()) {
    const auto count = std::min<std::size_t>(chunk, prompt.size() - s.length());
    const StepItem item{&s, prompt.subspan(s.length(), count), Logits::last, retain};
    const auto logits = Stepper(r).run({&item, 1});
    EXPECT_TRUE(logits.ok());
  }
  if (retain) {
    Stepper stepper(r);
    for (double rows = part; part > 0; rows = part, ++out.parts)
      if (retain->work(stepper, s, rows) != Program::Work::unfinished) break;
    EXPECT_TRUE(retain->drop_due(stepper, s).ok());
  }
  for (std::uint32_t l = 0; l < r.config().layers; ++l)
    for (std::uint32_t h = 0; h < r.config().kv_heads; ++h)
      out.kept.push_back(lane_tokens(r, s, l, h));
  for (const TokenId& t : answer) {
    const StepItem item{&s, {&t, 1}, Logits::last, retain};
    const auto logits = Stepper(r).run({&item, 1});
    EXPECT_TRUE(logits.ok()) << logits.error().message;
    out.logits.emplace_back(logits.value().begin(), logits.value().end());
  }
  return out;
}

std::vector<std::string> every_method() {
  if (kSanitized) return {"snapkv", "expected", "kvzip", "h2o", "streaming", "ada-snapkv"};
  std::vector<std::string> names;
  for (const RetainMethod* m : retain_methods())
    if (m->name != "oracle") names.emplace_back(m->name);
  for (const char* wrapped : {"ada-snapkv", "critical-snapkv", "ada-expected", "critical-h2o"})
    names.emplace_back(wrapped);
  return names;
}

class EveryMethod : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMethod, KeepsTheSameHoweverTheDecidingIsCut) {
  TinyRuntime r(llama());
  const auto prompt = printable_of(300, 1), answer = printable_of(4, 2);
  for (const char* merge : {"", ",merge=d2o", ",merge=cam"}) {
    const auto p = policy(GetParam() + ":30%" + merge);
    const KeptRead whole = run(*r, p, prompt, answer, 300);
    const KeptRead cut = run(*r, p, prompt, answer, 300, 20);
    EXPECT_EQ(cut.kept, whole.kept);
    EXPECT_EQ(cut.logits, whole.logits);
    EXPECT_GE(cut.parts, GetParam().starts_with("critical-") ? 20 : 1);
  }
}

TEST_P(EveryMethod, KeepsTheSameHoweverThePromptIsCut) {
  TinyRuntime r(llama());
  const auto prompt = printable_of(300, 1), answer = printable_of(40, 2);
  const KeptRead whole = run(*r, policy(GetParam() + ":30%"), prompt, answer, 300);
  std::size_t kept = 0;
  for (const auto& lane : whole.kept) kept += lane.size();
  EXPECT_LE(kept, whole.kept.size() * 90);
  EXPECT_GT(kept, whole.kept.size() * 3);
  for (const std::uint32_t chunk : {150u, 43u}) {
    const KeptRead cut = run(*r, policy(GetParam() + ":30%"), prompt, answer, chunk);
    EXPECT_EQ(cut.kept, whole.kept);
    EXPECT_EQ(cut.logits, whole.logits);
  }
}

TEST_P(EveryMethod, ABudgetForEverythingChangesNoBit) {
  TinyRuntime r(llama());
  const auto prompt = printable_of(200, 1), answer = printable_of(40, 2);
  EXPECT_EQ(run(*r, policy(GetParam() + ":100%,every=0"), prompt, answer, 64).logits,
            run(*r, nullptr, prompt, answer, 64).logits);
}

INSTANTIATE_TEST_SUITE_P(Retain, EveryMethod, ::testing::ValuesIn(every_method()),
                         [](const auto& param) {
                           std::string name;
                           for (const char c : param.param)
                             name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST_P(EveryMethod, FindsTheSameInACacheThatHasThePrompt) {
  TinyRuntime r(llama());
  const auto prompt = printable_of(300, 1);
  GenerateOptions options{
      .tokens_max = 40, .ignore_end = true, .retain = policy(GetParam() + ":30%")};
  const auto cold = client_generate(*r, prompt, options);
  ASSERT_TRUE(cold.ok()) << cold.error().message;
  options.retain = nullptr;
  ASSERT_TRUE(client_generate(*r, prompt, options).ok());
  options.retain = policy(GetParam() + ":30%");
  const auto warm = client_generate(*r, prompt, options);
  ASSERT_TRUE(warm.ok());
  EXPECT_EQ(warm.value().answers[0].tokens, cold.value().answers[0].tokens);
  EXPECT_EQ(warm.value().timings.kv_bytes, cold.value().timings.kv_bytes);
  const std::uint32_t queries = options.retain->prompt_queries();
  if (queries == RetainPolicy::kAllQueries) {
    EXPECT_EQ(warm.value().timings.cached_tokens, 0u);
  } else {
    EXPECT_EQ(warm.value().timings.cached_tokens, 300 - std::max(queries, 1u));
  }
  r->cache().check();
  EXPECT_EQ(r->cache().stats().referenced_blocks, 0u);
}

// Whole blocks only, and what they leave is the same however the prompt is cut.
TEST(RetainFormats, KiviKeepsWholeBlocks) {
  TinyRuntime r(llama(), {.kv_format = "kivi-4", .tokens_per_block = 32});
  const auto prompt = printable_of(330, 1), answer = printable_of(80, 2);
  for (const char* method : {"snapkv", "streaming", "ada-snapkv", "h2o", "kvzip"}) {
    SCOPED_TRACE(method);
    const auto p = policy(std::string(method) + ":40%");
    const KeptRead whole = run(*r, p, prompt, answer, 330);
    for (const auto& lane : whole.kept) {
      ASSERT_GE(lane.size(), 42u);
      ASSERT_LT(lane.size(), 330u);
      for (std::size_t i = 0; i + 10 < lane.size(); i += 32) {
        EXPECT_EQ(lane[i] % 32, 0u);
        EXPECT_EQ(lane[i + 31], lane[i] + 31);
      }
    }
    const KeptRead cut = run(*r, p, prompt, answer, 50);
    EXPECT_EQ(cut.kept, whole.kept);
    EXPECT_EQ(cut.logits, whole.logits);
  }
  EXPECT_FALSE(r->check_retain(*policy("h2o:40%,merge=value")).ok());
}

Request request(std::uint32_t i, std::shared_ptr<const RetainPolicy> p) {
  Request r{.prompt = printable_of(150 + 20 * i, i), .tokens_max = 100, .ignore_end = true};
  r.kv.retain = std::move(p);
  r.choices = 1 + i % 2;
  r.sampling = {.temperature = i % 2 ? 1.f : 0.f, .seed = i};
  return r;
}

GenerateOptions alone(const Request& r) {
  GenerateOptions o = alone_options(r);
  o.retain = r.kv.retain;
  return o;
}

// Every method beside all others in one engine, with memory for some of them only.
TEST(RetainEngine, NeighboursAndPreemptionChangeNoAnswer) {
  const std::vector<std::string> methods = every_method();
  for (const std::uint64_t bytes : {std::uint64_t{64} << 20, std::uint64_t{9} << 20}) {
    TinyEngine e(llama(), {.kv_cache_bytes = bytes}, {.step_tokens = 256});
    TinyRuntime other(llama());
    std::vector<std::shared_ptr<MemorySink>> sinks;
    const auto make = [&](std::uint32_t i) {
      return request(i, i % 5 == 4 ? nullptr : policy(methods[i % methods.size()] + ":30%"));
    };
    for (std::uint32_t i = 0; i < 24; ++i) sinks.push_back(e.submit(make(i)));
    e.run();
    std::uint32_t preemptions = 0;
    for (std::uint32_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(methods[i % methods.size()]);
      ASSERT_TRUE(sinks[i]->result)
          << (sinks[i]->failure ? sinks[i]->failure->message : "not over");
      const Request r = make(i);
      const auto wanted = naive_generate(*other, r.prompt, alone(r));
      ASSERT_TRUE(wanted.ok());
      for (std::size_t c = 0; c < sinks[i]->answers.size(); ++c)
        EXPECT_EQ(sinks[i]->answers[c].ids(), wanted.value().answers[c].tokens) << "choice " << c;
      preemptions += sinks[i]->result->preemptions;
      if (r.kv.retain) {
        EXPECT_LT(sinks[i]->result->kv_bytes, sinks[i]->result->kv_bytes_whole);
      }
    }
    EXPECT_EQ(preemptions > 0, bytes < (std::uint64_t{64} << 20));
    e.expect_empty();
  }
}

TEST(RetainEngine, RefusesWhatCannotBeCombined) {
  TinyRuntime r(llama());
  Request q = request(0, policy("snapkv:30%"));
  q.choices = 1;
  q.sampling = {};
  q.beams = 2;
  EXPECT_EQ(prepare_job(*r, {}, std::move(q), nullptr).failure.kind, FailureKind::invalid);
  EXPECT_FALSE(r->check_retain(*policy("streaming:4090")).ok());
}

// What a policy leaves of the first tokens is there for whoever asks for just that, and his answer is
// what it would have been without.
TEST(RetainEngine, SnapshotsAtACutAreShared) {
  const auto context = printable_of(200, 1);
  const auto ask = [&](std::string_view way, std::uint64_t seed) {
    Request q = request(0, policy(way));
    q.prompt = context;
    const auto question = printable_of(30, seed);
    q.prompt.insert(q.prompt.end(), question.begin(), question.end());
    q.tokens_max = 20;
    return q;
  };
  for (const char* way : {"kvzip:30%,cut=200", "expected:30%,cut=200", "streaming:60,cut=200",
                          "keydiff:30%,cut=190", "snapkv:30%,cut=200"}) {
    SCOPED_TRACE(way);
    TinyEngine e(llama(), {}, {.step_tokens = 64});
    TinyRuntime other(llama());
    for (const std::uint64_t seed : {7u, 8u, 7u}) {
      const auto got = e.submit(ask(way, seed));
      e.run();
      ASSERT_TRUE(got->result) << got->failure->message;
      const Request q = ask(way, seed);
      const auto wanted = naive_generate(*other, q.prompt, alone(q));
      ASSERT_TRUE(wanted.ok()) << wanted.error().message;
      EXPECT_EQ(got->answers[0].ids(), wanted.value().answers[0].tokens) << seed;
      EXPECT_LT(got->result->kv_bytes, got->result->kv_bytes_whole);
      other->cache().clear(true);
    }
    const auto last = e.submit(ask(way, 9));
    e.run();
    const RetainPolicy p = *policy(way);
    if (p.snapshots())
      EXPECT_EQ(last->result->cached_tokens, p.cut);
    else
      EXPECT_LE(last->result->cached_tokens, p.cut - 64);
    // Another budget, another salt: not for them.
    Request salted = ask(way, 9);
    salted.kv.salt = "mine";
    const auto apart = e.submit(std::move(salted));
    e.run();
    EXPECT_EQ(apart->result->cached_tokens, 0u);
    e.engine->drop_snapshots();
    e.expect_empty();
  }
}

// Answers that merge part ways and still do not write into each other's pages.
TEST(RetainEngine, MergingAnswersStayApart) {
  TinyRuntime r(llama());
  for (const char* merger : {"value", "d2o", "cam"}) {
    GenerateOptions o{.sampling = {.temperature = 1, .seed = 3},
                      .tokens_max = 100,
                      .choices = 3,
                      .ignore_end = true,
                      .retain = policy(std::string("h2o:25%,merge=") + merger)};
    const auto together = client_generate(*r, printable_of(200, 4), o);
    ASSERT_TRUE(together.ok()) << together.error().message;
    o.choices = 1;
    const auto first = client_generate(*r, printable_of(200, 4), o);
    EXPECT_EQ(together.value().answers[0].tokens, first.value().answers[0].tokens) << merger;
    EXPECT_NE(together.value().answers[1].tokens, first.value().answers[0].tokens);
  }
}

// In one layer keys depend on nothing but their tokens: after positions started over, what is left
// must read like a text of just these tokens.
TEST(Endless, PositionsStartOver) {
  TinyRuntime r({.layers = 1, .head_dim = 32}, {.kv_format = "f32", .context = 256});
  const RootId root = r->tenant_root("").value();
  const std::vector<TokenId> prompt = printable_of(60, 5), more = printable_of(1000, 6);
  Retaining retain(*r, policy("streaming:68"), 60, root);
  Sequence s = std::move(r->cache()
                             .open({.root = root,
                                    .token_capacity = 4096,
                                    .reuse = false,
                                    .publish = false,
                                    .recomputable = false})
                             .value());
  r->cache().attach(s, prompt);
  const StepItem first{&s, prompt, Logits::last, &retain};
  ASSERT_TRUE(Stepper(*r).run({&first, 1}).ok());
  std::uint32_t compared = 0, shift = 0;
  for (const TokenId& t : more) {
    Stepper stepper(*r);
    ASSERT_TRUE(retain.drop_due(stepper, s).ok());
    ASSERT_LE(s.length() - retain.position_shift(), 256u);
    const std::vector<std::uint32_t> left = lane_tokens(*r, s, 0, 0);
    const StepItem item{&s, {&t, 1}, Logits::last, &retain};
    const auto got = Stepper(*r).run({&item, 1});
    ASSERT_TRUE(got.ok());
    if (std::exchange(shift, retain.position_shift()) == retain.position_shift()) continue;
    const std::vector<float> logits(got.value().begin(), got.value().end());
    std::vector<TokenId> again;
    for (const std::uint32_t i : left) again.push_back(s.tokens()[i]);
    again.push_back(t);
    Sequence fresh = std::move(r->empty_sequence(256).value());
    const StepItem whole{&fresh, again, Logits::last};
    const auto wanted = Stepper(*r).run({&whole, 1});
    for (std::size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(logits[i], wanted.value()[i], 2e-4 * (1 + std::fabs(logits[i])));
    ++compared;
  }
  EXPECT_GE(compared, 4u);
}

TEST(Endless, FiveThousandTokensTakeTheMemoryOfFew) {
  for (const char* format : {"f16", "hadamard-int4"}) {
    TinyRuntime r(llama(), {.kv_format = format, .context = 512});
    GenerateOptions o{.tokens_max = 5000, .ignore_end = true, .retain = policy("streaming:132")};
    std::uint64_t most = 0, steps = 0;
    GenerateEvents events;
    events.step = [&] {
      if (++steps > 200) most = std::max(most, r->cache().stats().referenced_bytes);
      return true;
    };
    const auto made = client_generate(*r, printable_of(100, 7), o, events);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(made.value().answers[0].tokens.size(), 5000u);
    const Geometry& g = r->geometry();
    const std::uint64_t page = (g.page_bytes(g.groups[0]) + 255) / 256 * 256;
    EXPECT_LE(most,
              6 * 6 * page + 3 * g.block_bytes(g.groups.back()) + 3 * g.block_bytes(g.groups[0]));
    r->cache().check();
  }
}

}  // namespace
}  // namespace quire
