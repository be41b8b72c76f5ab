// engine/engine_testing.h - what tests of the engine share: a sink that remembers, and the same
// request computed alone by naive_generate().
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/answer_text.h"
#include "engine/client.h"
#include "engine/engine.h"
#include "engine/naive_testing.h"
#include "engine/testing.h"

namespace quire {

inline TinyOptions tiny() { return {.layers = 2}; }  // 4096 tokens take 2 MiB

// Letters, the same for the same seed.
inline std::vector<TokenId> text_of(std::size_t length, std::uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens(length);
  for (TokenId& t : tokens) t = 'a' + static_cast<TokenId>(random.below(26));
  return tokens;
}

// All that can be printed.
inline std::vector<TokenId> printable_of(std::size_t length, std::uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens(length);
  for (TokenId& t : tokens) t = static_cast<TokenId>(32 + random.below(90));
  return tokens;
}

inline Request request(std::vector<TokenId> prompt, std::uint32_t tokens_max = 8) {
  Request r;
  r.prompt = std::move(prompt);
  r.tokens_max = tokens_max;
  r.ignore_end = true;
  return r;
}

// Remembers every call and checks their order. It must not be read while another thread calls it.
class MemorySink : public RequestSink {
 public:
  struct Answer {
    std::vector<Choice> tokens;
    std::optional<Finish> finish;

    std::vector<TokenId> ids() const {
      std::vector<TokenId> all;
      for (const Choice& c : tokens) all.push_back(c.token);
      return all;
    }
  };

  explicit MemorySink(std::uint32_t choices = 1) : answers(choices) {}

  void admitted(const Admitted& a) override {
    EXPECT_FALSE(over()) << "called after the end";
    EXPECT_EQ(admissions++, 0);
    admission = a;
  }
  void prompt_logprobs(std::vector<PromptLogprob> p) override {
    EXPECT_FALSE(over());
    scores = std::move(p);
  }
  void token(std::uint32_t choice, const Choice& token) override {
    EXPECT_FALSE(over());
    ASSERT_LT(choice, answers.size());
    EXPECT_FALSE(answers[choice].finish) << "a token after the choice was finished";
    answers[choice].tokens.push_back(token);
    if (on_token) on_token(choice, token);
  }
  void finished(std::uint32_t choice, Finish how) override {
    EXPECT_FALSE(over());
    ASSERT_LT(choice, answers.size());
    EXPECT_FALSE(answers[choice].finish);
    answers[choice].finish = how;
  }
  void done(const Done& d) override {
    EXPECT_FALSE(over());
    for (const Answer& a : answers) EXPECT_TRUE(a.finish);
    result = d;
  }
  void failed(const Failure& f) override {
    EXPECT_FALSE(over());
    failure = f;
  }
  bool over() const { return result || failure; }

  std::vector<Answer> answers;  // by choice
  std::vector<PromptLogprob> scores;
  Admitted admission;
  int admissions = 0;
  std::optional<Done> result;
  std::optional<Failure> failure;
  std::function<void(std::uint32_t, const Choice&)> on_token;
};

// An engine on a tiny model, driven by hand.
class TinyEngine {
 public:
  explicit TinyEngine(const TinyOptions& model, const RuntimeOptions& opened = {},
                      ServiceOptions service = {})
      : options(std::move(service)), runtime(model, opened) {
    engine = std::make_unique<Engine>(*runtime, options, log, clock);
  }

  JobId submit(Request request, std::shared_ptr<MemorySink> sink) {
    PreparedJob p = prepare_job(*runtime, options, std::move(request), std::move(sink));
    EXPECT_TRUE(p.job) << p.failure.message;
    const JobId id = p.job->id = static_cast<JobId>(++jobs);
    p.job->submitted = clock.now();
    engine->submit(std::move(p.job));
    return id;
  }
  std::shared_ptr<MemorySink> submit(Request request) {
    auto sink = std::make_shared<MemorySink>(request.choices);
    submit(std::move(request), sink);
    return sink;
  }
  void run() {  // a step may find that all it had to run has failed, but not for ever
    for (int idle = 0; engine->has_jobs(); idle = engine->step() ? 0 : idle + 1)
      ASSERT_LT(idle, 3) << "nothing runs, though there are requests";
  }
  void expect_empty() {
    runtime->cache().check();
    EXPECT_EQ(runtime->cache().stats().referenced_blocks, 0u);
    EXPECT_EQ(runtime->cache().stats().sequences, 0u);
  }

  ServiceOptions options;
  TinyRuntime runtime;
  RequestLog log{1024};
  SteadyClock clock;
  std::unique_ptr<Engine> engine;
  std::uint64_t jobs = 0;
};

inline GenerateOptions alone_options(const Request& r) {
  GenerateOptions o{.sampling = r.sampling, .tokens_max = r.tokens_max, .choices = r.choices};
  o.beams = r.beams;
  o.length_penalty = r.length_penalty;
  o.ignore_end = r.ignore_end;
  return o;
}

}  // namespace quire
