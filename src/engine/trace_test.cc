// Same answer under load: random requests arrive, share prefixes, are cancelled, stopped,
// preempted; every answer is compared with the same request computed alone by naive_generate().
//
// QUIRE_TRACE_REQUESTS and QUIRE_TRACE_SEED make it longer and different.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <string>

#include "base/random.h"
#include "base/sanitized.h"
#include "engine/engine_testing.h"
#include "model/adapter/adapter.h"

namespace quire {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

// What a client would do with one request.
struct Caller {
  Request request;  // a copy without what only the engine needs
  std::vector<std::string> stop;
  std::shared_ptr<MemorySink> sink;
  JobId job{};
  StopStrings stops;
  std::vector<AnswerText> texts;  // by choice
  std::vector<std::string> out;
  bool cancelled = false;
  std::uint64_t submitted = 0;  // at this step
};

struct TraceKind {
  const char* architecture;
  bool ahead;           // most are greedy, and steps are submitted ahead where they can be
  bool drafts = false;  // of everything that stood somewhere before, right or not
};

class TraceTest : public ::testing::TestWithParam<TraceKind> {
 protected:
  static bool latent() { return std::string_view(GetParam().architecture) == "deepseek2"; }
  static bool windows() { return std::string_view(GetParam().architecture) == "gemma3"; }
  static TinyOptions model() {
    return {.architecture = GetParam().architecture,
            .layers = windows() ? 7u : 2u,
            .kv_heads = 4,
            .head_dim = 32};
  }

  std::vector<TokenId> letters(std::size_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& t : tokens) t = 'a' + static_cast<TokenId>(random_.below(26));
    return tokens;
  }

  // Prompts begin like others: a few roots, and continuations of earlier prompts.
  std::vector<TokenId> prompt() {
    if (roots_.size() < 6) roots_.push_back(letters(20 + random_.below(120)));
    std::vector<TokenId> p = roots_[random_.below(roots_.size())];
    if (random_.chance(0.2)) p.resize(1 + random_.below(p.size()));
    const std::vector<TokenId> tail = letters(random_.below(60));
    if (random_.chance(0.7)) p.insert(p.end(), tail.begin(), tail.end());
    if (p.size() < 200 && random_.chance(0.1)) roots_[random_.below(roots_.size())] = p;
    return p;
  }

  // Budgets that requests share, with and without a cut.
  static std::shared_ptr<const RetainPolicy> budget(std::uint64_t which) {
    static const std::vector<std::shared_ptr<const RetainPolicy>> all = [] {
      std::vector<std::shared_ptr<const RetainPolicy>> made;
      for (const char* text : {"snapkv:50%", "streaming:48", "h2o:40", "kvzip:50%", "tova:32",
                               "keydiff:40,cut=32", "knorm:32,cut=48", "streaming:32,cut=32",
                               "expected:50%,cut=64", "random:40,cut=40", "h2o:32,cut=40"})
        made.push_back(std::make_shared<RetainPolicy>(parse_retain_policy(text).value()));
      return made;
    }();
    return all[which % all.size()];
  }

  // Equal requests come together, and requests that go on where another one ended.
  Request make_request() {
    if (!earlier_.empty() && random_.chance(0.3)) {
      Request again = copy(earlier_[random_.below(earlier_.size())]);
      const std::vector<TokenId> tail = letters(random_.below(40));
      if (random_.chance(0.4)) again.prompt.insert(again.prompt.end(), tail.begin(), tail.end());
      return again;
    }
    Request made = new_request();
    if (earlier_.size() < 8)
      earlier_.push_back(copy(made));
    else
      earlier_[random_.below(earlier_.size())] = copy(made);
    return made;
  }

  Request new_request() {
    Request r;
    r.prompt = prompt();
    r.tokens_max = static_cast<std::uint32_t>(random_.below(20));
    if (random_.chance(0.15)) r.tokens_max += 40 + static_cast<std::uint32_t>(random_.below(80));
    r.ignore_end = random_.chance(0.5);
    if (random_.chance(GetParam().ahead ? 0.02 : 0.6))
      r.sampling = {.temperature = static_cast<float>(0.5 + random_.unit()),
                    .top_k = random_.chance(0.3) ? 20u : 0u,
                    .top_p = random_.chance(0.3) ? 0.9f : 1.f,
                    .repetition_penalty = random_.chance(0.2) ? 1.2f : 1.f,
                    .seed = random_.next()};
    if (random_.chance(0.3)) r.choices = 1 + static_cast<std::uint32_t>(random_.below(4));
    if (random_.chance(GetParam().ahead ? 0.01 : 0.08)) {
      r.sampling = {};
      r.beams = r.choices + static_cast<std::uint32_t>(random_.below(3));
      r.tokens_max = std::max(r.tokens_max, 1u);
    }
    r.priority = static_cast<std::int32_t>(random_.below(3));
    r.kv.tenant = random_.chance(0.2) ? "other" : "";
    r.kv.salt = random_.chance(0.1) ? "salt" : "";
    r.kv.reuse = !random_.chance(0.1);
    if (random_.chance(0.1)) r.kv.write = random_.chance(0.5) ? KvWrite::none : KvWrite::prompt;
    if (r.beams == 0 && random_.chance(GetParam().ahead ? 0.05 : 0.35) && !latent())
      r.kv.retain = budget(random_.next());
    if (random_.chance(0.35)) r.kv.adapters = sets_[random_.below(sets_.size())];
    if (r.kv.retain && r.kv.adapters && r.kv.adapters->begins_late()) r.kv.adapters = nullptr;
    return r;
  }

  std::unique_ptr<Caller> make_client(const Tokenizer& tokenizer) {
    auto c = std::make_unique<Caller>();
    c->request = make_request();
    const Request& r = c->request;
    if (r.beams == 0 && random_.chance(0.3)) {
      c->stop = {std::string(1, static_cast<char>('a' + random_.below(26))), "ab"};
      c->stops = std::move(StopStrings::create(c->stop).value());
    }
    c->sink = std::make_shared<MemorySink>(r.choices);
    for (std::uint32_t i = 0; i < r.choices; ++i)
      c->texts.emplace_back(
          tokenizer, c->stops,
          AnswerTextOptions{
              .stop = c->stop,
              .end_tokens = r.ignore_end ? std::vector<TokenId>{} : tokenizer.end_of_generation()});
    c->out.resize(r.choices);
    return c;
  }

  static Request copy(const Request& r) {
    Request c;
    c.prompt = r.prompt;
    c.sampling = r.sampling;
    c.tokens_max = r.tokens_max;
    c.ignore_end = r.ignore_end;
    c.choices = r.choices;
    c.beams = r.beams;
    c.priority = r.priority;
    c.kv = r.kv;
    return c;
  }

  void expect_as_alone(Caller& c) {
    if (c.cancelled) {
      EXPECT_TRUE(c.sink->over());
      return;
    }
    ASSERT_TRUE(c.sink->result) << c.sink->failure->message;
    GenerateOptions o = alone_options(c.request);
    o.stop = c.stop;
    o.retain = c.request.kv.retain;
    o.adapters = c.request.kv.adapters;
    adapted_ += o.adapters != nullptr;
    auto alone = naive_generate(*reference_, c.request.prompt, o);
    ASSERT_TRUE(alone.ok()) << alone.error().message;
    for (std::uint32_t i = 0; i < c.request.choices; ++i) {
      const Generated& expected = alone.value().answers[i];
      const MemorySink::Answer& answer = c.sink->answers[i];
      c.texts[i].finish(c.out[i]);
      // The engine went on until it heard of the stop string; what counts is the same.
      ASSERT_EQ(c.texts[i].tokens(), expected.tokens.size());
      const std::vector<TokenId> ids = answer.ids();
      ASSERT_TRUE(std::equal(expected.tokens.begin(), expected.tokens.end(), ids.begin()));
      for (std::size_t t = 0; t < expected.tokens.size(); ++t)
        ASSERT_EQ(answer.tokens[t].logprob, expected.choices[t].logprob);
      ASSERT_EQ(c.out[i], expected.text);
      ASSERT_EQ(c.texts[i].stopped(), expected.finish == Finish::stop_string);
      if (c.texts[i].stopped()) {
        EXPECT_EQ(*c.texts[i].stopped_by(), expected.stopped_by);
      } else {
        EXPECT_EQ(answer.finish, expected.finish);
        EXPECT_EQ(ids.size(), expected.tokens.size());
      }
    }
    EXPECT_LE(c.sink->result->preemptions, 5u);
    preemptions_ += c.sink->result->preemptions;
    cached_ += c.sink->result->cached_tokens;
  }

  Random random_{from_environment("QUIRE_TRACE_SEED", 1)};
  std::vector<std::vector<TokenId>> roots_;
  std::vector<Request> earlier_;
  TinyRuntime reference_{model(), {.tokens_per_block = 16}};
  std::uint64_t preemptions_ = 0, cached_ = 0, adapted_ = 0;
  // Two adapters, both in either order, one with another scale, and one that begins where an answer
  // to 'e' does.
  const std::vector<std::shared_ptr<const AdapterSet>> sets_ = [this] {
    const ModelConfig& config = reference_->config();
    const auto one = Adapter::random(config, 4, 1, 0.3f).value(),
               two = Adapter::random(config, 20, 2, 0.2f).value(),
               late = Adapter::random(config, 8, 3, 0.3f, {'e'}).value();
    std::vector<std::shared_ptr<const AdapterSet>> made;
    for (std::vector<AdapterSet::Part> parts :
         std::vector<std::vector<AdapterSet::Part>>{{{one}},
                                                    {{two}},
                                                    {{one}, {two, 0.5f}},
                                                    {{two, 0.5f}, {one}},
                                                    {{one, -1.5f}},
                                                    {{late}}})
      made.push_back(AdapterSet::make(std::move(parts)).value());
    return made;
  }();
};

TEST_P(TraceTest, EveryAnswerIsWhatItWouldBeAlone) {
  const std::uint64_t requests = from_environment("QUIRE_TRACE_REQUESTS", kSanitized ? 100 : 1000);
  // What runs together does not always fit.
  TinyEngine e(
      model(),
      {.tokens_per_block = 16,
       .kv_cache_bytes = (windows()  ? 14u
                          : latent() ? 2u
                                     : 6u)
                         << 20},
      {.step_tokens = 96,
       .sequences_max = 48,
       .ahead = GetParam().ahead,
       .drafts = {.sources = GetParam().drafts ? 0xfu : 0, .adaptive = false, .lookup_min = 1}});
  std::deque<std::unique_ptr<Caller>> clients;
  std::deque<std::pair<std::uint64_t, std::pair<JobId, std::uint32_t>>> stops;  // step, choice
  std::uint64_t submitted = 0, steps = 0, compared = 0, longest = 0;
  while (submitted < requests || e.engine->has_jobs()) {
    if (submitted < requests && clients.size() < 120 && (!GetParam().ahead || random_.chance(0.3)))
      for (std::uint64_t burst = random_.chance(0.1) ? random_.below(40) : random_.below(3);
           burst > 0 && submitted < requests; --burst, ++submitted) {
        std::unique_ptr<Caller> c = make_client(reference_->tokenizer());
        Caller* client = c.get();
        c->sink->on_token = [client, &stops, &steps, this](std::uint32_t choice, const Choice& t) {
          if (client->texts[choice].stopped()) return;
          if (client->texts[choice].add(t, client->out[choice]))
            stops.push_back({steps + random_.below(3), {client->job, choice}});
        };
        c->submitted = steps;
        c->job = e.submit(copy(c->request), c->sink);
        clients.push_back(std::move(c));
      }
    if (!clients.empty() && random_.chance(0.03)) {
      Caller& c = *clients[random_.below(clients.size())];
      c.cancelled = c.cancelled || !c.sink->over();
      e.engine->cancel(c.job);
    }
    if (random_.chance(0.003)) e.runtime->cache().clear();
    while (!stops.empty() && stops.front().first <= steps) {
      e.engine->finish(stops.front().second.first, stops.front().second.second);
      stops.pop_front();
    }
    if (e.engine->has_jobs()) {
      ASSERT_TRUE(e.engine->step());
    }
    if (++steps % 64 == 0) e.runtime->cache().check();
    for (const auto& c : clients)
      if (!c->sink->over()) longest = std::max(longest, steps - c->submitted);
    while (!clients.empty() && clients.front()->sink->over()) {
      expect_as_alone(*clients.front());
      if (HasFatalFailure()) FAIL() << "request " << compared;
      clients.pop_front();
      ++compared;
    }
  }
  e.engine->drop_snapshots();
  e.expect_empty();
  EXPECT_EQ(compared, requests);
  EXPECT_GT(cached_, 0u);
  EXPECT_GT(adapted_, requests / 10);
  if (requests >= 1000) {
    EXPECT_GT(preemptions_, 0u);
  }
  const ServiceStats& s = e.engine->stats();
  EXPECT_EQ(s.requests_running + s.requests_waiting + s.sequences_running, 0u);
  // At most 160 are here at once, none of more than 140 tokens: nobody is left standing.
  EXPECT_LT(longest, 2000u);
  // How many depends on how fast steps are; some tenth to quarter of the requests.
  EXPECT_EQ(s.steps_ahead > requests / 50, GetParam().ahead);
  EXPECT_EQ(s.drafts[0].accepted > 0, GetParam().drafts);
  RecordProperty("ahead", static_cast<int>(s.steps_ahead));
  RecordProperty("longest", static_cast<int>(longest));
  RecordProperty("preemptions", static_cast<int>(preemptions_));
  RecordProperty("parked", static_cast<int>(s.preemptions_parked));
  RecordProperty("recomputed", static_cast<int>(s.preemptions_recompute));
}

INSTANTIATE_TEST_SUITE_P(Architectures, TraceTest,
                         ::testing::Values(TraceKind{"llama", false}, TraceKind{"gemma3", false},
                                           TraceKind{"llama", true}, TraceKind{"gemma3", true},
                                           TraceKind{"llama", false, true},
                                           TraceKind{"gemma3", false, true},
                                           TraceKind{"deepseek2", false},
                                           TraceKind{"deepseek2", false, true}),
                         [](const auto& p) {
                           return std::string(p.param.architecture) + (p.param.ahead    ? "_ahead"
                                                                       : p.param.drafts ? "_drafts"
                                                                                        : "");
                         });

}  // namespace
}  // namespace quire
