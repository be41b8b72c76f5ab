// A device's half of sampling and the Sampler's, together, against the Sampler alone: the same token
// and the same log-probability, bit for bit.
#include <bit>
#include <cmath>
#include <map>
#include <memory>

#include "engine/sampler.h"
#include "kernels/cuda/device_testing.h"

namespace quire {
namespace {

class DeviceDraws : public Cuda {
 protected:
  void TearDown() override {
    if (host_) api_->free_host(host_);
    Cuda::TearDown();
  }
  // Pinned memory, as a pass has it.
  std::byte* pinned(std::size_t bytes) {
    void* p = nullptr;
    ok(api_->allocate_host(bytes, &p));
    host_ = p;
    std::fill_n(static_cast<std::byte*>(p), bytes, std::byte{0xff});
    return static_cast<std::byte*>(p);
  }
  void* host_ = nullptr;
};

// Logits of every steepness, with equals among them.
std::vector<float> random_logits(Random& random, std::uint32_t vocabulary) {
  std::vector<float> x(vocabulary);
  const double spread = std::pow(10, 2.5 * random.unit() - 1.5);
  for (float& v : x) v = static_cast<float>(spread * std::log(random.unit() + 1e-9));
  if (random.chance(0.3))
    for (float& v : x) v = std::round(v * 4) / 4;
  if (random.chance(0.2))
    for (float& v : x) v += 20;
  return x;
}

SamplingOptions random_options(Random& random, std::uint32_t vocabulary) {
  SamplingOptions o;
  const auto maybe = [&](double chance, double low, double high) {
    return random.chance(chance) ? low + (high - low) * random.unit() : -1;
  };
  o.temperature = static_cast<float>(std::max(0.0, maybe(0.85, 0.05, 2)));
  if (random.chance(0.4)) o.top_k = 1 + static_cast<std::uint32_t>(random.below(200));
  if (random.chance(0.4)) o.top_p = static_cast<float>(0.3 + 0.69 * random.unit());
  if (random.chance(0.3)) o.min_p = static_cast<float>(0.2 * random.unit());
  if (random.chance(0.2)) o.typical_p = static_cast<float>(0.3 + 0.69 * random.unit());
  if (random.chance(0.3)) o.repetition_penalty = static_cast<float>(0.5 + random.unit());
  if (random.chance(0.3)) o.presence_penalty = static_cast<float>(2 * random.unit());
  if (random.chance(0.3)) o.frequency_penalty = static_cast<float>(random.unit() - 0.5);
  for (std::uint64_t n = random.chance(0.3) ? random.below(20) : 0; n > 0; --n)
    o.logit_bias.emplace_back(static_cast<TokenId>(random.below(vocabulary)),
                              static_cast<float>(10 * random.unit() - 5));
  o.seed = random.below(1u << 30);
  return o;
}

// Rows of every kind, and what the Sampler alone chooses of them.
struct Rows {
  static constexpr std::uint32_t kCount = 40;
  std::vector<float> logits;
  std::vector<SamplingOptions> options;
  std::vector<TokenCounts> counts{kCount};
  std::vector<std::vector<TokenId>> banned{kCount};
  std::vector<DrawRow> rows{kCount};
  std::vector<DrawChange> changes;
  const std::uint32_t vocabulary;
  Sampler sampler;

  explicit Rows(std::uint32_t n) : vocabulary(n), sampler(vector_kernels(best_isa()), n) {
    Random random(n);
    for (std::uint32_t r = 0; r < kCount; ++r) {
      const std::vector<float> x = random_logits(random, n);
      logits.insert(logits.end(), x.begin(), x.end());
      options.push_back(random_options(random, n));
      std::vector<TokenId> prompt(random.below(300));
      for (TokenId& t : prompt) t = static_cast<TokenId>(random.below(n));
      counts[r].add_prompt(prompt);
      for (int i = 0; i < 30; ++i) counts[r].add_generated(static_cast<TokenId>(random.below(n)));
      if (random.chance(0.3))
        banned[r] = {static_cast<TokenId>(std::max_element(x.begin(), x.end()) - x.begin()),
                     static_cast<TokenId>(random.below(n))};
      if (!Sampler::describe(options[r], counts[r], 0, r, banned[r], rows[r], changes))
        rows[r] = {};
      rows[r].list = r;
    }
    changes.push_back({});
  }
  std::span<const float> row(std::uint32_t r) const {
    return std::span(logits).subspan(std::size_t{r} * vocabulary, vocabulary);
  }
  void check(std::uint32_t r, const Drawn& drawn) {
    if (drawn.mode == DrawMode::logits) return;
    EXPECT_TRUE(drawn.finite);
    const Choice got = sampler.choose(drawn, options[r], 0, r);
    std::vector<float> x(row(r).begin(), row(r).end());
    const Choice want = sampler.sample(x, options[r], counts[r], 0, r, {.banned = banned[r]});
    EXPECT_EQ(got.token, want.token)
        << "row " << r << " of " << vocabulary << ", mode " << static_cast<int>(drawn.mode);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got.logprob), std::bit_cast<std::uint32_t>(want.logprob))
        << got.logprob << " " << want.logprob;
  }
};

void all_kinds(const std::map<DrawMode, int>& seen, int least) {
  for (const DrawMode mode : {DrawMode::best, DrawMode::whole, DrawMode::above, DrawMode::top})
    EXPECT_GT(seen.at(mode), least) << static_cast<int>(mode);
}

TEST(DrawScalar, LeavesWhatTheSamplerChooses) {
  std::map<DrawMode, int> seen;
  auto list = std::make_unique<DrawList>();
  for (const std::uint32_t vocabulary : {100u, 5003u, 49152u}) {
    Rows rows(vocabulary);
    for (std::uint32_t r = 0; r < Rows::kCount; ++r) {
      const Drawn drawn = draw_scalar(rows.row(r), rows.rows[r], rows.changes, *list);
      ++seen[drawn.mode];
      rows.check(r, drawn);
    }
  }
  all_kinds(seen, 5);
}

TEST_F(DeviceDraws, LeaveWhatTheSamplerChooses) {
  std::map<DrawMode, int> seen;
  for (const std::uint32_t vocabulary : {100u, 5003u, 49152u, 128256u}) {
    Rows rows(vocabulary);
    float* logits = up(rows.logits);
    constexpr std::size_t kLists = Rows::kCount * sizeof(DrawList);
    std::byte* host = pinned(kLists + Rows::kCount * sizeof(Drawn));
    auto* list = reinterpret_cast<DrawList*>(host);
    auto* drawn = reinterpret_cast<Drawn*>(host + kLists);
    ok(api_->draw({logits, up(rows.rows), up(rows.changes),
                   static_cast<float*>(room(rows.changes.size() * sizeof(float))),
                   static_cast<DrawList*>(room(kLists)), list, drawn, Rows::kCount, vocabulary},
                  stream_));
    EXPECT_EQ(down<float>(logits, rows.logits.size()), rows.logits) << "logits are as they were";
    for (std::uint32_t r = 0; r < Rows::kCount; ++r) {
      ++seen[drawn[r].mode];
      if (drawn[r].mode == DrawMode::above || drawn[r].mode == DrawMode::top)
        drawn[r].list = &list[r];
      rows.check(r, drawn[r]);
    }
    api_->free_host(host_);
    host_ = nullptr;
  }
  all_kinds(seen, 8);
}

TEST_F(DeviceDraws, RowsThatAreNotFiniteSaySo) {
  constexpr std::uint32_t kVocabulary = 1000;
  std::vector<float> x(2 * kVocabulary, std::nanf(""));
  for (std::uint32_t i = kVocabulary; i < 2 * kVocabulary; ++i) x[i] = -1;
  std::vector<DrawRow> rows(2);
  for (DrawRow& row : rows) row.mode = DrawMode::whole;
  auto* drawn = reinterpret_cast<Drawn*>(pinned(2 * sizeof(Drawn)));
  ok(api_->draw({up(x), up(rows), nullptr, nullptr, nullptr, nullptr, drawn, 2, kVocabulary},
                stream_));
  ok(api_->wait(stream_));
  EXPECT_TRUE(drawn[0].mode == DrawMode::logits || !drawn[0].finite);
  EXPECT_TRUE(drawn[1].finite);
  EXPECT_EQ(drawn[1].mode, DrawMode::whole);
}

}  // namespace
}  // namespace quire
