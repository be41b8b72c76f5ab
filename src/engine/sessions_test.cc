#include "engine/sessions.h"

#include <gtest/gtest.h>

#include <cctype>

#include "base/sanitized.h"
#include "engine/engine_testing.h"
#include "kv/retain/retain.h"

namespace quire {
namespace {

std::shared_ptr<SessionTurn> begin(Sessions& sessions, const std::string& id,
                                   std::span<const TokenId> prompt, const KvPolicy& kv = {},
                                   bool fork = false) {
  auto turn = sessions.begin("t", id, {.prompt = prompt, .kv = kv, .fork = fork});
  EXPECT_TRUE(turn.ok()) << turn.error().message;
  return turn.value();
}

TEST(Sessions, OneRequestAtATimeGoesOnWithASession) {
  const auto sessions = std::make_shared<Sessions>();
  const auto prompt = text_of(10, 1);
  auto turn = begin(*sessions, "a", prompt);
  EXPECT_EQ(sessions->begin("t", "a", {.prompt = prompt, .kv = {}}).error().code,
            Code::unavailable);
  EXPECT_EQ(sessions->remove("t", "a").error().code, Code::unavailable);
  EXPECT_TRUE(sessions->begin("other tenant", "a", {.prompt = prompt, .kv = {}}).ok());
  const auto fork = begin(*sessions, "a", prompt, {}, true);
  EXPECT_EQ(fork->id(), "a~2");
  EXPECT_EQ(sessions->find("t", "a~2").value().parent, "a");
  turn.reset();  // it came to nothing, and so did the session
  EXPECT_FALSE(sessions->find("t", "a").ok());
}

TEST(Sessions, ARequestThatExtendsASessionContinuesIt) {
  const auto sessions = std::make_shared<Sessions>();
  auto text = text_of(10, 1);
  EXPECT_EQ(begin(*sessions, "a", text)->how(), SessionTurn::How::created);
  begin(*sessions, "a", text)->ended(text_of(12, 1), 11, {});
  EXPECT_EQ(sessions->find("t", "a").value().first_prompt, 10u);
  EXPECT_EQ(begin(*sessions, "a", text)->how(), SessionTurn::How::replaced);
  EXPECT_EQ(begin(*sessions, "a", text_of(20, 1))->how(), SessionTurn::How::continued);
  EXPECT_EQ(begin(*sessions, "a", text_of(20, 1))->first_prompt(), 10u);
  EXPECT_EQ(begin(*sessions, "a", text_of(20, 2))->how(), SessionTurn::How::replaced);
  EXPECT_EQ(begin(*sessions, "a", text_of(20, 1), {.salt = "x"})->how(),
            SessionTurn::How::replaced);
}

TEST(Sessions, TurnsAreTakenBackOneByOne) {
  const auto sessions = std::make_shared<Sessions>();
  begin(*sessions, "a", text_of(10, 1))->ended(text_of(12, 1), 11, {});
  begin(*sessions, "a", text_of(20, 1))->ended(text_of(25, 1), 24, {});
  EXPECT_EQ(sessions->truncate("t", "a", {.last_turns = 3}).error().code, Code::invalid);
  EXPECT_EQ(sessions->truncate("t", "a", {.at_token = 26}).error().code, Code::invalid);
  EXPECT_EQ(sessions->truncate("t", "a", {.last_turns = 1}, true).value(), 12u);
  EXPECT_EQ(sessions->truncate("t", "a", {.last_turns = 1}).value(), 12u);
  EXPECT_EQ(sessions->find("t", "a").value().first_prompt, 10u);
  EXPECT_TRUE(sessions->fork("t", "a", "b", 5).value());
  EXPECT_EQ(sessions->find("t", "b").value().first_prompt, 0u);
  EXPECT_FALSE(sessions->fork("t", "a", "b", {}).value()) << "the name is taken";
  EXPECT_EQ(sessions->children("t", "a"), std::vector<std::string>{"b"});
  EXPECT_EQ(sessions->truncate("t", "a", {.last_turns = 1}).value(), 0u);
}

TEST(Sessions, NamesAndNumbersAreBounded) {
  const auto sessions = std::make_shared<Sessions>(SessionLimits{.sessions_max = 5,
                                                                 .sessions_max_per_tenant = 3,
                                                                 .tokens_max = 100,
                                                                 .tokens_max_per_tenant = 50});
  for (const std::string name : {"", "a\nb", "\xff", "a\x7f"})
    EXPECT_FALSE(check_session_name(name).ok());
  EXPECT_FALSE(check_session_name(std::string(129, 'a')).ok());
  for (const std::string name : {"..", "../../etc/passwd", "grüße", "a b"})
    EXPECT_TRUE(check_session_name(name).ok()) << "it is never a path";
  for (const char* name : {"a", "b", "c"})
    EXPECT_TRUE(sessions->create({.tenant = "t", .id = name}).value());
  EXPECT_EQ(sessions->create({.tenant = "t", .id = "d"}).error().code, Code::exhausted);
  EXPECT_EQ(sessions->fork("t", "a", "d", {}).error().code, Code::exhausted);
  EXPECT_TRUE(sessions->create({.tenant = "u", .id = "a", .tokens = text_of(40, 1)}).value());
  EXPECT_EQ(sessions->create({.tenant = "u", .id = "b", .tokens = text_of(11, 1)}).error().code,
            Code::exhausted);
  EXPECT_TRUE(sessions->remove("u", "a").ok());
  EXPECT_TRUE(sessions->create({.tenant = "u", .id = "b", .tokens = text_of(11, 1)}).value());
  EXPECT_EQ(sessions->list("t", "a", 1).sessions[0].id, "b");
  EXPECT_TRUE(sessions->list("t", "a", 1).more);
}

// An engine with sessions.
struct Talk {
  explicit Talk(const TinyOptions& model, std::shared_ptr<const RetainPolicy> retain = {},
                std::shared_ptr<const SelectPolicy> select = {})
      : engine(model), retains(std::move(retain)), selects(std::move(select)) {}

  Request ask(std::vector<TokenId> prompt, std::uint32_t tokens) const {
    Request r = request(std::move(prompt), tokens);
    r.kv.retain = retains;
    r.kv.select = selects;
    return r;
  }
  std::vector<TokenId> turn(const std::string& id, std::vector<TokenId> prompt,
                            std::uint32_t tokens) {
    Request r = ask(std::move(prompt), tokens);
    auto began = sessions->begin("", id, {.prompt = r.prompt, .kv = r.kv});
    EXPECT_TRUE(began.ok()) << began.error().message;
    how = began.value()->how();
    r.session = std::move(began.value());
    return alone(std::move(r));
  }
  std::vector<TokenId> alone(Request r) {
    last = engine.submit(std::move(r));
    engine.run();
    EXPECT_TRUE(last->result) << (last->failure ? last->failure->message : "");
    return last->answers[0].ids();
  }

  TinyEngine engine;
  std::shared_ptr<const RetainPolicy> retains;
  std::shared_ptr<const SelectPolicy> selects;
  std::shared_ptr<Sessions> sessions = std::make_shared<Sessions>();
  std::shared_ptr<MemorySink> last;
  SessionTurn::How how{};
};

std::vector<TokenId> joined(std::vector<TokenId> a, std::span<const TokenId> b,
                            std::span<const TokenId> c = {}) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  return a;
}

std::shared_ptr<const RetainPolicy> retain_policy(const std::string& text) {
  auto made = parse_retain_policy(text);
  EXPECT_TRUE(made.ok()) << text;
  return std::make_shared<RetainPolicy>(made.value());
}

std::vector<std::string> session_methods() {
  if (kSanitized) return {"snapkv", "h2o", "streaming", "kvzip"};
  std::vector<std::string> names;
  for (const RetainMethod* m : retain_methods())
    if (m->name != "oracle") names.emplace_back(m->name);
  return names;
}

TinyOptions small_llama() { return {.type = DType::q8_0, .layers = 2, .head_dim = 64}; }

class EverySessionMethod : public ::testing::TestWithParam<std::string> {};

// Three ways to the same place: going on with what is in memory, computing the session again, and
// one request whose policy sees only the first prompt.
TEST_P(EverySessionMethod, ASessionGoesOnAsOneText) {
  const auto first = printable_of(100, 1), second = printable_of(21, 2);
  // Methods that look at the whole prompt drop nothing later.
  std::string policy = GetParam() + ":40%,every=32";
  if (!parse_retain_policy(policy).ok()) policy = GetParam() + ":40%";
  const bool thorough = GetParam() == "h2o" || GetParam() == "snapkv";
  for (const std::uint32_t answer : thorough ? std::vector{1u, 28u, 45u} : std::vector{28u}) {
    Talk talk(small_llama(), retain_policy(policy));
    const auto said = talk.turn("a", first, answer);
    const auto prompt = joined(first, said, second);
    ASSERT_TRUE(talk.sessions->fork("", "a", "b", {}).value());
    const auto held = talk.turn("a", prompt, 40);
    EXPECT_EQ(talk.how, SessionTurn::How::continued);
    const std::uint32_t served = talk.last->result->cached_tokens;
    EXPECT_EQ(served, 100 + answer - 1) << "the state was not used";
    talk.engine.engine->drop_snapshots();
    EXPECT_EQ(talk.turn("b", prompt, 40), held) << "after it was computed again";
    EXPECT_LT(talk.last->result->cached_tokens, served);
    Talk other(small_llama(), retain_policy(policy + ",cut=100"));
    EXPECT_EQ(other.alone(other.ask(prompt, 40)), held) << "as one text";
  }
}

INSTANTIATE_TEST_SUITE_P(Sessions, EverySessionMethod, ::testing::ValuesIn(session_methods()),
                         [](const auto& param) {
                           std::string name;
                           for (const char c : param.param)
                             name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(Sessions, OneThatSelectsGoesOnToo) {
  const auto select = std::make_shared<SelectPolicy>(parse_select_policy("quest:64").value());
  const auto first = printable_of(150, 1), second = printable_of(21, 2);
  Talk talk({.type = DType::q8_0, .layers = 4, .query_heads = 4, .kv_heads = 2, .head_dim = 32}, {},
            select);
  const auto said = talk.turn("a", first, 30);
  const auto prompt = joined(first, said, second);
  ASSERT_TRUE(talk.sessions->fork("", "a", "b", {}).value());
  const auto held = talk.turn("a", prompt, 30);
  EXPECT_EQ(talk.last->result->cached_tokens, 179u);
  talk.engine.engine->drop_snapshots();
  // Another request leaves the same text in the cache, computed from all of it.
  talk.alone(request(joined(prompt, held), 1));
  EXPECT_EQ(talk.turn("b", prompt, 30), held);
}

TEST(Sessions, APlainOneHoldsALeaseUntilItGoes) {
  Talk talk(tiny());
  const auto first = printable_of(100, 1);
  const auto said = talk.turn("a", first, 10);
  EXPECT_EQ(talk.engine.runtime->cache().stats().leases, 1u);
  const auto again = talk.turn("a", joined(first, said, printable_of(5, 3)), 10);
  EXPECT_EQ(talk.engine.runtime->cache().stats().leases, 1u);
  EXPECT_GE(talk.last->result->cached_tokens, 96u);
  const Session gone = talk.sessions->remove("", "a").value();
  EXPECT_EQ(gone.tokens.size(), 125u);
  EXPECT_TRUE(talk.engine.runtime->cache().release(*gone.lease).ok());
  talk.engine.expect_empty();
}

TEST(Sessions, ARequestThatFailsLeavesItsSessionAsItWas) {
  Talk talk(tiny());
  const auto said = talk.turn("a", printable_of(100, 1), 10);
  Request r = talk.ask(joined(printable_of(100, 1), said, printable_of(5, 3)), 50);
  r.session = talk.sessions->begin("", "a", {.prompt = r.prompt, .kv = r.kv}).value();
  auto sink = std::make_shared<MemorySink>(1);
  const JobId id = talk.engine.submit(std::move(r), sink);
  for (int i = 0; i < 5; ++i) talk.engine.engine->step();
  EXPECT_TRUE(talk.sessions->find("", "a").value().busy);
  talk.engine.engine->cancel(id);
  EXPECT_FALSE(talk.sessions->find("", "a").value().busy);
  EXPECT_EQ(talk.sessions->find("", "a").value().tokens.size(), 110u);
}

}  // namespace
}  // namespace quire
