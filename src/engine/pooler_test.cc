// Embeddings: the same bits however a prompt is read, and what they are made of. Also log-probabilities
// of a part of a prompt, which reuse the part before.
#include "engine/pooler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine_testing.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

constexpr Pooling kWays[] = {Pooling::last, Pooling::mean, Pooling::cls};

Request embedding(std::vector<TokenId> prompt, Pooling how) {
  Request r = request(std::move(prompt), 0);
  r.pooling = how;
  return r;
}

std::vector<float> pooled(TinyEngine& e, Request r) {
  const auto sink = e.submit(std::move(r));
  e.run();
  EXPECT_TRUE(sink->result) << (sink->failure ? sink->failure->message : "not over");
  return sink->result ? sink->result->pooled : std::vector<float>();
}

TinyOptions pooled_model(const char* architecture) {
  return {.architecture = architecture,
          .type = DType::q8_0,
          .layers = std::string_view(architecture) == "gemma3" ? 7u : 3u,
          .head_dim = 32};
}

TEST(Pooler, TheSameBitsHoweverThePromptIsRead) {
  const auto prompt = text_of(230, 3), other = text_of(90, 4);
  for (const char* architecture : {"llama", "gemma3"})
    for (const char* format : {"f16", "int8"})
      for (const Pooling how : kWays) {
        SCOPED_TRACE(fmt::format("{} {} {}", architecture, format, static_cast<int>(how)));
        TinyEngine e(pooled_model(architecture), {.kv_format = format});
        const std::vector<float> wanted = pooled(e, embedding(prompt, how));
        ASSERT_EQ(wanted.size(), e.runtime->config().hidden);
        EXPECT_EQ(pooled(e, embedding(prompt, how)), wanted) << "again";
        for (const std::uint32_t chunk : {1u, 3u, 50u}) {
          Request r = embedding(prompt, how);
          r.chunk = chunk;
          r.kv.reuse = false;
          EXPECT_EQ(pooled(e, std::move(r)), wanted) << "in chunks of " << chunk;
        }
        std::vector<std::shared_ptr<MemorySink>> crowd;  // some decode, some are read beside it
        for (int i = 0; i < 3; ++i) {
          crowd.push_back(e.submit(request(other, 20)));
          e.engine->step();
          crowd.push_back(e.submit(embedding(prompt, how)));
          crowd.push_back(e.submit(embedding(other, Pooling::mean)));
        }
        e.run();
        for (std::size_t i = 1; i < crowd.size(); i += 3) {
          ASSERT_TRUE(crowd[i]->result);
          EXPECT_EQ(crowd[i]->result->pooled, wanted) << "among others";
        }
        e.expect_empty();
      }
}

TEST(Pooler, TheSameBitsOnAnyThreadsAndInstructionSets) {
  const auto prompt = text_of(150, 5);
  TinyEngine one(pooled_model("llama"));
  for (const Pooling how : kWays) {
    const std::vector<float> wanted = pooled(one, embedding(prompt, how));
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa)) continue;
      TinyEngine e(pooled_model("llama"), {.threads = isa == Isa::scalar ? 1u : 3u, .isa = isa});
      EXPECT_EQ(pooled(e, embedding(prompt, how)), wanted) << isa_name(isa);
    }
  }
}

// The state of token i is that of the last token of a prompt that ends there.
TEST(Pooler, AMeanIsTheMeanOfTheLastStatesOfAllPrefixes) {
  const auto prompt = text_of(40, 6);
  TinyEngine e(pooled_model("llama"));
  std::vector<double> sum(e.runtime->config().hidden);
  std::vector<float> first;
  for (std::size_t end = 1; end <= prompt.size(); ++end) {
    const auto state =
        pooled(e, embedding({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(end)},
                            Pooling::last));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += state[i];
    if (end == 1) first = state;
  }
  const auto mean = pooled(e, embedding(prompt, Pooling::mean));
  for (std::size_t i = 0; i < sum.size(); ++i)
    EXPECT_EQ(mean[i], static_cast<float>(sum[i] / static_cast<double>(prompt.size())));
  EXPECT_EQ(pooled(e, embedding(prompt, Pooling::cls)), first);
}

TEST(Pooler, OnlyTheLastStateReadsCachedBlocks) {
  const auto prompt = text_of(200, 7);
  TinyEngine e(pooled_model("llama"));
  pooled(e, embedding(prompt, Pooling::last));
  for (const Pooling how : kWays) {
    const auto sink = e.submit(embedding(prompt, how));
    e.run();
    ASSERT_TRUE(sink->result);
    EXPECT_EQ(sink->result->cached_tokens > 0, how == Pooling::last);
  }
}

// Embeddings are read beside answers that outgrow the cache.
TEST(Pooler, PreemptionChangesNothing) {
  const auto prompt = text_of(900, 8);
  TinyEngine roomy(tiny());
  const auto wanted = pooled(roomy, embedding(prompt, Pooling::mean));
  TinyEngine tight(tiny(), {.kv_cache_bytes = 2 << 20}, {.step_tokens = 64});
  std::vector<std::shared_ptr<MemorySink>> sinks;
  for (std::uint32_t i = 0; i < 12; ++i) {
    sinks.push_back(tight.submit(request(text_of(100, 20 + i), 300)));
    Request r = embedding(prompt, Pooling::mean);
    r.priority = -50;
    sinks.push_back(tight.submit(std::move(r)));
  }
  tight.run();
  std::uint32_t preemptions = 0;
  for (std::size_t i = 1; i < sinks.size(); i += 2) {
    ASSERT_TRUE(sinks[i]->result);
    EXPECT_EQ(sinks[i]->result->pooled, wanted);
    preemptions += sinks[i]->result->preemptions;
  }
  EXPECT_GT(preemptions, 0u);
}

TEST(Pooler, AnEmbeddingHasNoAnswer) {
  TinyEngine e(tiny());
  const auto refused = [&](const std::function<void(Request&)>& change) {
    Request r = embedding(text_of(20, 1), Pooling::mean);
    change(r);
    return prepare_job(*e.runtime, e.options, std::move(r), std::make_shared<MemorySink>())
        .failure.message;
  };
  EXPECT_EQ(refused([](Request&) {}), "");
  EXPECT_NE(refused([](Request& r) { r.tokens_max = 1; }), "");
  EXPECT_NE(refused([](Request& r) { r.choices = 2; }), "");
  EXPECT_NE(refused([](Request& r) { r.kv.convert = true; }), "");
  EXPECT_NE(refused([](Request& r) { r.kv.blend = 0.2; }), "");
  EXPECT_NE(refused([](Request& r) {
              r.kv.retain =
                  std::make_shared<RetainPolicy>(parse_retain_policy("streaming:50%").value());
            }),
            "");
}

TEST(PromptLogprobs, OfAPartAreThoseOfTheWholeAndReuseThePartBefore) {
  const auto prompt = text_of(230, 11);
  TinyEngine e(pooled_model("llama"));
  const auto scores = [&](std::uint32_t from, std::uint32_t chunk) {
    Request r = request(prompt, 0);
    r.prompt_logprobs = 2;
    r.prompt_logprobs_from = from;
    r.chunk = chunk;
    auto sink = e.submit(std::move(r));
    e.run();
    EXPECT_TRUE(sink->result);
    return sink;
  };
  const auto whole = scores(1, 0);
  for (const std::uint32_t from : {2u, 31u, 32u, 33u, 150u, 229u, 230u})
    for (const std::uint32_t chunk : {0u, 7u}) {
      SCOPED_TRACE(fmt::format("from {} in chunks of {}", from, chunk));
      const auto part = scores(from, chunk);
      ASSERT_EQ(part->scores.size(), prompt.size());
      EXPECT_EQ(part->result->cached_tokens, std::min(from - 1, 224u));  // blocks are whole
      for (std::uint32_t i = 0; i < prompt.size(); ++i) {
        EXPECT_EQ(part->scores[i].token, prompt[i]);
        const PromptLogprob& wanted = whole->scores[i];
        EXPECT_EQ(part->scores[i].logprob, i < from ? 0 : wanted.logprob);
        EXPECT_EQ(part->scores[i].alternatives.size(), i < from ? 0u : 2u);
      }
    }
  e.expect_empty();
}

}  // namespace
}  // namespace quire
