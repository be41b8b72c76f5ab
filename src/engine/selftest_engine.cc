// Requests in a crowd: the engine answers each as it does alone.
#include <fmt/core.h>

#include <bit>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/selftest.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

// What one request was answered: every token and its log-probability, choice by choice, or its
// embedding.
class HashSink final : public RequestSink {
 public:
  explicit HashSink(std::uint32_t choices) : answers(choices) {}
  void admitted(const Admitted&) override {}
  void token(std::uint32_t choice, const Choice& token) override {
    const auto bits = std::bit_cast<std::uint32_t>(token.logprob);
    answers[choice].push_back(std::uint64_t{bits} << 32 | static_cast<std::uint32_t>(token.token));
  }
  void finished(std::uint32_t, Finish) override {}
  void done(const Done& d) override {
    for (const float x : d.pooled) answers[0].push_back(std::bit_cast<std::uint32_t>(x));
  }
  void failed(const Failure& f) override { failure = f.message; }

  std::vector<std::vector<std::uint64_t>> answers;
  std::string failure;
};

struct CrowdMember {
  std::string name;
  std::uint32_t copies = 1;
  std::vector<TokenId> prompt;
  float temperature = 0;
  std::uint32_t choices = 1, beams = 0;
  std::shared_ptr<const RetainPolicy> retain = {};
  Pooling pooling = Pooling::none;

  Request request() const {
    Request made{
        .prompt = prompt, .tokens_max = 12, .ignore_end = true, .choices = choices, .beams = beams};
    made.sampling.temperature = temperature;
    made.sampling.seed = 7;
    made.kv.retain = retain;
    made.pooling = pooling;
    if (pooling != Pooling::none) made.tokens_max = 0;
    return made;
  }
};

class Crowd {
 public:
  explicit Crowd(Runtime& runtime)
      : runtime_(runtime),
        options_{.step_tokens = std::min(128u, runtime.executor().traits().rows_max),
                 .sequences_max = std::min(64u, runtime.executor().traits().rows_max)} {}

  // The answers of requests that arrive together at an empty cache. With drafts, every token that
  // stood in the text before is followed by what came after it there: most of it is wrong.
  Result<std::vector<std::shared_ptr<HashSink>>> ask(std::span<const CrowdMember* const> members,
                                                     bool drafts = false) {
    runtime_.cache().clear(true);
    RequestLog log(16);
    options_.drafts = {.sources = drafts ? 0xfu : 0, .adaptive = false, .lookup_min = 1};
    Engine engine(runtime_, options_, log, clock_);
    std::vector<std::shared_ptr<HashSink>> sinks;
    for (const CrowdMember* m : members) {
      sinks.push_back(std::make_shared<HashSink>(m->choices));
      PreparedJob prepared = prepare_job(runtime_, options_, m->request(), sinks.back());
      if (!prepared.job) return Error{Code::unsupported, prepared.failure.message};
      prepared.job->id = static_cast<JobId>(sinks.size());
      prepared.job->submitted = clock_.now();
      engine.submit(std::move(prepared.job));
    }
    while (engine.has_jobs()) engine.step();
    return sinks;
  }

 private:
  Runtime& runtime_;
  ServiceOptions options_;
  SteadyClock clock_;
};

std::vector<CrowdMember> crowd_members(const Runtime& runtime, std::span<const TokenId> prompt) {
  const std::vector<TokenId> whole(prompt.begin(), prompt.end()),
      half(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(prompt.size() / 2 + 3));
  std::vector<CrowdMember> all{
      {.name = "the most likely tokens", .copies = 3, .prompt = whole},
      {.name = "three drawn answers", .copies = 2, .prompt = whole, .temperature = 1, .choices = 3},
      {.name = "beam search", .prompt = whole, .choices = 2, .beams = 4},
      {.name = "half of the prompt", .copies = 2, .prompt = half}};
  if (!runtime.executor().traits().page_work) return all;
  all.push_back({.name = "embedding of the last token",
                 .copies = 2,
                 .prompt = whole,
                 .pooling = Pooling::last});
  all.push_back({.name = "mean embedding", .copies = 2, .prompt = whole, .pooling = Pooling::mean});
  for (const char* how : {"streaming:40%", "snapkv:50%"})
    if (auto policy = parse_retain_policy(how);
        policy.ok() && runtime.check_retain(policy.value(), nullptr, 1, 0).ok())
      all.push_back({.name = how,
                     .copies = 2,
                     .prompt = whole,
                     .retain = std::make_shared<const RetainPolicy>(policy.value())});
  return all;
}

}  // namespace

Status selftest_engine(Runtime& runtime, std::span<const TokenId> prompt, const std::string& prefix,
                       const std::function<void(const SelftestCheck&)>& report) {
  Crowd crowd(runtime);
  std::vector<const CrowdMember*> together;
  std::vector<std::shared_ptr<HashSink>> wanted;
  const std::vector<CrowdMember> members = crowd_members(runtime, prompt);
  for (const CrowdMember& m : members) {
    const CrowdMember* const one = &m;
    TRY(const auto alone, crowd.ask({&one, 1}));
    for (std::uint32_t i = 0; i < m.copies; ++i) {
      together.push_back(&m);
      wanted.push_back(alone[0]);
    }
  }
  for (const bool drafts : {false, true}) {
    TRY(const auto got, crowd.ask(together, drafts));
    std::size_t at = 0;
    for (const CrowdMember& m : members) {
      SelftestCheck check{.name = prefix + fmt::format("{} among {} requests{}", m.name, got.size(),
                                                       drafts ? " with drafts" : ""),
                          .ok = true};
      for (std::uint32_t i = 0; i < m.copies; ++i, ++at) {
        for (const auto& answer : got[at]->answers) check.compared += answer.size();
        check.detail = got[at]->failure;
        if (!check.detail.empty() || check.compared == 0 || got[at]->answers != wanted[at]->answers)
          check.ok = false;
      }
      report(check);
    }
  }
  return {};
}

}  // namespace quire
