// Contexts larger than memory: the same answers as with a cache that holds everything.
#include "engine/spilling.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "engine/combine.h"
#include "engine/engine_testing.h"
#include "engine/plan.h"
#include "format/format.h"

namespace quire {
namespace {

using Ids = std::vector<TokenId>;

class Folder {
 public:
  Folder() : path_(::testing::TempDir() + "quire-spill-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::shared_ptr<const StoragePolicy> stored_as(const std::string& format) {
  return std::make_shared<StoragePolicy>(find_format(format).value());
}

// 8 layers, 2 KiB per token in f16: a block of 32 tokens takes 64 KiB.
TinyOptions deep(std::uint32_t context = 16384) {
  return {.type = DType::q8_0, .layers = 8, .head_dim = 32, .context = context};
}
constexpr std::uint64_t kMiB = 1 << 20;

// An engine with a folder, and a cache that may be too small.
class Spiller {
 public:
  explicit Spiller(std::uint64_t cache_bytes, const TinyOptions& model = deep(),
                   std::uint64_t disk_bytes = std::uint64_t{1} << 30, std::uint32_t threads = 2)
      : engine_(model,
                {.threads = threads,
                 .kv_cache_bytes = cache_bytes,
                 .kv_dir = folder_.path(),
                 .kv_disk_bytes = disk_bytes},
                {.step_tokens = 512}) {}

  std::shared_ptr<MemorySink> start(Request r) { return engine_.submit(std::move(r)); }
  // Until everything is over; `between` is called between steps.
  void run(const std::function<void()>& between = {}) {
    while (engine_.engine->has_jobs()) {
      if (!engine_.engine->step()) ::usleep(200);
      if (between) between();
    }
  }
  Ids ask(Request r, const std::function<void()>& between = {}) {
    last = start(std::move(r));
    run(between);
    EXPECT_TRUE(last->result) << (last->failure ? last->failure->message : "no end");
    return last->answers[0].ids();
  }
  PreparedJob prepare(Request r) {
    return prepare_job(*engine_.runtime, engine_.options, std::move(r), nullptr);
  }
  Runtime& runtime() { return *engine_.runtime; }
  Engine& engine() { return *engine_.engine; }
  // What a tier still writes into its ring ends soon.
  void expect_empty() {
    KvCache& cache = engine_.runtime->cache();
    for (int i = 0; i < 3000 && cache.landings() > 0; ++i) {
      ::usleep(1000);
      engine_.engine->drain_below();
    }
    engine_.expect_empty();
    EXPECT_EQ(cache.stats().fenced_bytes, 0u);
  }

  std::shared_ptr<MemorySink> last;

 private:
  Folder folder_;
  TinyEngine engine_;
};

Ids with_room(const Request& r, const TinyOptions& model = deep()) {
  TinyEngine engine(model, {.threads = 2, .kv_cache_bytes = 4096 * kMiB});
  Request same = request(r.prompt, r.tokens_max);
  same.kv.storage = r.kv.storage;
  const auto sink = engine.submit(std::move(same));
  engine.run();
  EXPECT_TRUE(sink->result);
  return sink->answers[0].ids();
}

Request asking(std::size_t tokens, std::uint64_t resident, std::uint64_t seed = 1,
               const char* format = nullptr) {
  Request r = request(printable_of(tokens, seed), 24);
  r.kv.resident = resident;
  if (format) r.kv.storage = stored_as(format);
  return r;
}

// The contract: 8,000 tokens take 16 MiB, the arena has 8.
TEST(Spilling, EightThousandTokensInEightMegabytes) {
  Spiller small(8 * kMiB);
  const Request r = asking(8000, 8 * kMiB);
  ASSERT_GT(sequence_bytes(small.runtime().geometry(), 8000), 15 * kMiB);
  EXPECT_EQ(small.ask(asking(8000, 8 * kMiB)), with_room(r));
  const Done& done = *small.last->result;
  EXPECT_GT(done.cold_blocks, 100u);
  EXPECT_GT(done.cold_bytes, 100 * kMiB);
  EXPECT_LE(done.cold_hidden_bytes, done.cold_bytes);
  EXPECT_EQ(done.lost_blocks, 0u);
  EXPECT_LE(small.runtime().cache().stats().slab_bytes, 8 * kMiB);
  small.expect_empty();
}

// 100,000 tokens in 64 MiB, where QUIRE_RESIDENT_TOKENS says so.
TEST(Spilling, AHundredThousandTokensInSixtyFourMegabytes) {
  const char* const asked = std::getenv("QUIRE_RESIDENT_TOKENS");
  if (asked == nullptr) GTEST_SKIP() << "takes long: set QUIRE_RESIDENT_TOKENS=100000";
  const auto tokens = static_cast<std::uint32_t>(std::strtoul(asked, nullptr, 10));
  const TinyOptions model = deep(tokens + 64);
  Spiller small(64 * kMiB, model);
  const Request r = asking(tokens, 64 * kMiB);
  const Ids expected = with_room(r, model);
  EXPECT_EQ(small.ask(asking(tokens, 64 * kMiB)), expected);
  const Done& done = *small.last->result;
  fmt::print("{} tokens: {} cold blocks, {} bytes read per token, {:.2f} of them hidden\n", tokens,
             done.cold_blocks, done.cold_bytes / (tokens + 24),
             static_cast<double>(done.cold_hidden_bytes) / static_cast<double>(done.cold_bytes));
}

TEST(Spilling, EveryFormatGivesTheSameBits) {
  for (const char* format :
       {"f32", "bf16", "int8", "hadamard-int4", "kivi-2", "int8/hadamard-int4"}) {
    SCOPED_TRACE(format);
    Spiller small(16 * kMiB);
    Request r = asking(1300, 0, 3, format);
    const std::uint64_t bytes = sequence_bytes(small.runtime().geometry(r.kv.storage.get()), 1300);
    r.kv.resident = bytes * 4 / 5;
    const Ids expected = with_room(r);
    EXPECT_EQ(small.ask(std::move(r)), expected);
    EXPECT_GT(small.last->result->cold_blocks, 4u);
    small.expect_empty();
  }
}

TEST(Spilling, ThreadsAndChunksChangeNothing) {
  const Ids expected = with_room(asking(1000, 0, 4));
  for (const std::uint32_t threads : {1u, 3u})
    for (const std::uint32_t chunk : {0u, 33u}) {
      Spiller small(8 * kMiB, deep(), kMiB << 10, threads);
      Request r = asking(1000, 1300'000, 4);
      r.chunk = chunk;
      EXPECT_EQ(small.ask(std::move(r)), expected) << threads << " threads, chunk " << chunk;
    }
}

// The conversation goes on: what is stored of it is not computed, and not loaded whole either.
TEST(Spilling, AConversationGoesOnFromItsBlocks) {
  Spiller small(4 * kMiB);
  Request first = asking(3000, 4 * kMiB, 5);
  const Ids prompt = first.prompt, answer = small.ask(std::move(first));
  Request next = asking(0, 4 * kMiB);
  next.prompt = prompt;
  next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
  const Ids more = printable_of(40, 6);
  next.prompt.insert(next.prompt.end(), more.begin(), more.end());
  const Ids expected = with_room(next);
  EXPECT_EQ(small.ask(std::move(next)), expected);
  EXPECT_GE(small.last->admission.cached_tokens, 2900u);
  EXPECT_GE(small.last->result->loaded_tokens, 2900u);
  EXPECT_LT(small.last->result->computed_tokens, 200u);
  // A request that fits finds the same blocks, and the other way round.
  Request shorter = request(Ids(prompt.begin(), prompt.begin() + 1000), 8);
  const Ids other = with_room(shorter);
  EXPECT_EQ(small.ask(std::move(shorter)), other);
  small.expect_empty();
}

TEST(Spilling, OthersGoOnBesideIt) {
  Spiller small(6 * kMiB);
  const Ids expected = with_room(asking(4000, 0, 7)),
            beside = with_room(request(text_of(200, 8), 40));
  const auto large = small.start(asking(4000, 3 * kMiB, 7));
  std::vector<std::shared_ptr<MemorySink>> others;
  for (int i = 0; i < 3; ++i) others.push_back(small.start(request(text_of(200, 8), 40)));
  small.run();
  ASSERT_TRUE(large->result) << large->failure->message;
  EXPECT_EQ(large->answers[0].ids(), expected);
  for (const auto& o : others) {
    ASSERT_TRUE(o->result) << o->failure->message;
    EXPECT_EQ(o->answers[0].ids(), beside);
  }
  small.expect_empty();
}

// Blocks that the tier loses in the middle are computed again.
TEST(Spilling, LostBlocksAreComputedAgain) {
  Spiller small(4 * kMiB);
  const Ids expected = with_room(asking(3000, 0, 9));
  std::uint32_t clears = 0;
  const Ids got = small.ask(asking(3000, 4 * kMiB, 9), [&] {
    TierLink& link = *small.runtime().tiers();
    if (clears == 3 || link.stats().up.bytes < (4 + 16 * clears) * kMiB) return;
    link.clear();
    ++clears;
  });
  EXPECT_EQ(got, expected);
  EXPECT_GT(small.last->result->lost_blocks, 0u);
  small.expect_empty();
}

TEST(Spilling, ItStartsOverAfterAPreemption) {
  Spiller small(4 * kMiB);
  const Ids expected = with_room(asking(2500, 0, 10));
  const auto low = small.start(asking(2500, 3 * kMiB, 10));
  for (int i = 0; i < 200 && small.engine().has_jobs(); ++i)
    if (!small.engine().step()) ::usleep(200);
  Request urgent = request(printable_of(1200, 11), 60);
  urgent.priority = 100;
  const Ids other = with_room(urgent);
  const auto high = small.start(std::move(urgent));
  small.run();
  ASSERT_TRUE(low->result && high->result);
  EXPECT_EQ(low->answers[0].ids(), expected);
  EXPECT_EQ(high->answers[0].ids(), other);
  small.expect_empty();
}

TEST(Spilling, CancellingLeavesNothingBehind) {
  for (int steps = 1; steps < 400; steps = steps * 3 / 2 + 1) {
    Spiller small(3 * kMiB);
    const auto sink = small.start(asking(2000, 3 * kMiB, 12));
    for (int i = 0; i < steps && small.engine().has_jobs(); ++i)
      if (!small.engine().step()) ::usleep(100);
    small.engine().cancel(JobId{1});
    small.expect_empty();
  }
}

TEST(Spilling, ATierThatTakesNothingEndsItWithAReason) {
  Spiller small(3 * kMiB, deep(), 4 * kMiB);
  const PreparedJob refused = small.prepare(asking(4000, 3 * kMiB));
  EXPECT_EQ(refused.failure.kind, FailureKind::kv_capacity);
  EXPECT_NE(refused.failure.message.find("--kv-disk"), std::string::npos);
}

TEST(Spilling, AdmissionCountsWhatItHolds) {
  Spiller small(4 * kMiB);
  const PreparedJob whole = small.prepare(asking(4000, 0));
  EXPECT_EQ(whole.failure.kind, FailureKind::kv_capacity);
  EXPECT_NE(whole.failure.message.find("kv.resident"), std::string::npos);
  const PreparedJob little = small.prepare(asking(4000, 100'000));
  EXPECT_EQ(little.failure.kind, FailureKind::kv_capacity);
  EXPECT_NE(little.failure.message.find("would do"), std::string::npos);
  const PreparedJob fits = small.prepare(asking(200, 4 * kMiB));
  ASSERT_TRUE(fits.job);
  EXPECT_EQ(fits.job->request.kv.resident, 0u);  // like any other
  EXPECT_TRUE(small.prepare(asking(4000, 4 * kMiB)).job);
}

// What the table refuses is refused by name, and everything else is answered.
TEST(Spilling, CombinesAsTheTableSays) {
  Spiller small(4 * kMiB);
  std::set<std::string_view> seen;
  const auto expect_refused = [&](std::string_view with,
                                  const std::function<void(Request&)>& change) {
    Request r = asking(3000, 3 * kMiB, 13);
    change(r);
    const PreparedJob made = small.prepare(std::move(r));
    ASSERT_FALSE(made.job) << with;
    EXPECT_TRUE(
        made.failure.message.starts_with("kv.resident: kv.resident with " + std::string(with)))
        << made.failure.message;
    seen.insert(with);
  };
  const auto policy = [](std::string_view format, auto change) {
    auto storage = std::make_shared<StoragePolicy>(find_format(format).value());
    change(*storage);
    return storage;
  };
  expect_refused("kv.tiers and kv.write", [](Request& r) { r.kv.write = KvWrite::none; });
  expect_refused("kv.tiers and kv.write", [](Request& r) { r.kv.disk = false; });
  expect_refused("formats", [&](Request& r) { r.kv.storage = stored_as("minicache"); });
  expect_refused("recent_exact and sinks of a format", [&](Request& r) {
    r.kv.storage = policy("int8", [](StoragePolicy& p) { p.recent_exact = 64; });
  });
  expect_refused("plans and skip_layers of a format", [&](Request& r) {
    r.kv.storage = policy("int8", [](StoragePolicy& p) { p.skip_layers = {0}; });
  });
  expect_refused("kv.budget", [](Request& r) {
    r.kv.retain = std::make_shared<RetainPolicy>(parse_retain_policy("snapkv:60%").value());
  });
  expect_refused("kv.select", [](Request& r) {
    r.kv.select = std::make_shared<SelectPolicy>(parse_select_policy("quest:64").value());
  });
  expect_refused("sparse prompts", [&](Request& r) {
    r.kv.storage = policy("f16", [](StoragePolicy& p) {
      p.prefill = parse_select_policy("xattention:0.9").value().prefill;
    });
  });
  expect_refused("approximate reuse", [](Request& r) { r.kv.blend = 0.2; });
  expect_refused("kv.convert", [](Request& r) {
    r.kv.convert = true;
    r.kv.storage = stored_as("int8");
    r.kv.resident = 2 * kMiB;
  });
  expect_refused("n, best_of and beam search", [](Request& r) { r.choices = 2; });
  expect_refused("n, best_of and beam search", [](Request& r) { r.beams = 2; });
  expect_refused("embeddings", [](Request& r) {
    r.pooling = Pooling::mean;
    r.tokens_max = 0;
  });
  TinyEngine none(deep(), {.kv_cache_bytes = 4 * kMiB});
  const PreparedJob without =
      prepare_job(*none.runtime, none.options, asking(3000, 3 * kMiB), nullptr);
  EXPECT_NE(without.failure.message.find("--kv-dir"), std::string::npos);
  seen.insert("tiers");
  // A model all of whose layers have windows, sessions, and a GPU need more than a request.
  for (const std::string_view elsewhere : {"models with windows", "kv.session", "GPU"})
    seen.insert(elsewhere);
  for (const CombineRule& rule : combine_rules())
    if (rule.part == Part::resident && rule.refuses) {
      EXPECT_TRUE(seen.contains(rule.with)) << rule.with;
    }
}

TEST(Spilling, ModelsWithWindowsSpillTheOtherLayers) {
  const TinyOptions gemma{.architecture = "gemma3", .layers = 7, .head_dim = 32, .context = 16384};
  Spiller small(8 * kMiB, gemma);
  Request r = asking(6000, kMiB, 14);
  const Ids expected = with_room(r, gemma);
  const Ids got = small.ask(std::move(r));
  EXPECT_EQ(got, expected);
  EXPECT_GT(small.last->result->cold_blocks, 0u);
  small.expect_empty();
}

TEST(Spilling, LogprobsOfAPromptAreTheSame) {
  Spiller small(3 * kMiB);
  Request scored = asking(2000, 3 * kMiB, 15);
  scored.prompt_logprobs = 1;
  scored.prompt_logprobs_from = 1900;
  small.ask(std::move(scored));
  TinyEngine large(deep(), {.threads = 2});
  Request same = request(printable_of(2000, 15), 24);
  same.prompt_logprobs = 1;
  same.prompt_logprobs_from = 1900;
  const auto sink = large.submit(std::move(same));
  large.run();
  ASSERT_EQ(small.last->scores.size(), sink->scores.size());
  for (std::size_t i = 1900; i < sink->scores.size(); ++i)
    EXPECT_EQ(small.last->scores[i].logprob, sink->scores[i].logprob) << i;
}

}  // namespace
}  // namespace quire
