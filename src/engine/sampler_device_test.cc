// A device's half of sampling and the Sampler's, together, against the Sampler alone: the same token
// and the same log-probability, bit for bit.
#include <bit>
#include <cmath>
#include <map>

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

TEST_F(DeviceDraws, ChooseWhatTheSamplerChooses) {
  constexpr std::uint32_t kRows = 40;
  std::map<DrawMode, int> seen;
  for (const std::uint32_t vocabulary : {100u, 5003u, 49152u, 128256u}) {
    Random random(vocabulary);
    Sampler sampler(vector_kernels(best_isa()), vocabulary);
    std::vector<float> all;
    std::vector<SamplingOptions> options;
    std::vector<TokenCounts> counts(kRows);
    std::vector<std::vector<TokenId>> banned(kRows);
    std::vector<DrawRow> rows(kRows);
    std::vector<DrawChange> changes;
    std::uint32_t lists = 0;
    for (std::uint32_t r = 0; r < kRows; ++r) {
      const std::vector<float> x = random_logits(random, vocabulary);
      all.insert(all.end(), x.begin(), x.end());
      options.push_back(random_options(random, vocabulary));
      std::vector<TokenId> prompt(random.below(300));
      for (TokenId& t : prompt) t = static_cast<TokenId>(random.below(vocabulary));
      counts[r].add_prompt(prompt);
      for (int i = 0; i < 30; ++i)
        counts[r].add_generated(static_cast<TokenId>(random.below(vocabulary)));
      if (random.chance(0.3))
        banned[r] = {static_cast<TokenId>(std::max_element(x.begin(), x.end()) - x.begin()),
                     static_cast<TokenId>(random.below(vocabulary))};
      if (!Sampler::describe(options[r], counts[r], 0, r, banned[r], rows[r], changes))
        rows[r] = {};
      rows[r].list = lists++;
    }
    float* logits = up(all);
    const std::size_t lists_bytes = lists * sizeof(DrawList);
    std::byte* host = pinned(lists_bytes + kRows * sizeof(Drawn));
    auto* list = reinterpret_cast<DrawList*>(host);
    auto* drawn = reinterpret_cast<Drawn*>(host + lists_bytes);
    changes.push_back({});
    ok(api_->draw(
        {logits, up(rows), up(changes), static_cast<float*>(room(changes.size() * sizeof(float))),
         static_cast<DrawList*>(room(lists_bytes)), list, drawn, kRows, vocabulary},
        stream_));
    const auto after = down<float>(logits, all.size());
    EXPECT_EQ(after, all) << "logits are as they were";
    for (std::uint32_t r = 0; r < kRows; ++r) {
      ++seen[drawn[r].mode];
      if (drawn[r].mode == DrawMode::logits) continue;
      EXPECT_TRUE(drawn[r].finite);
      if (drawn[r].mode == DrawMode::above || drawn[r].mode == DrawMode::top)
        drawn[r].list = &list[rows[r].list];
      const Choice got = sampler.choose(drawn[r], options[r], 0, r);
      std::vector<float> x(all.begin() + std::size_t{r} * vocabulary,
                           all.begin() + std::size_t{r + 1} * vocabulary);
      const Choice want = sampler.sample(x, options[r], counts[r], 0, r, {.banned = banned[r]});
      EXPECT_EQ(got.token, want.token)
          << "row " << r << " of " << vocabulary << ", mode " << static_cast<int>(drawn[r].mode);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(got.logprob),
                std::bit_cast<std::uint32_t>(want.logprob))
          << got.logprob << " " << want.logprob;
    }
    api_->free_host(host_);
    host_ = nullptr;
  }
  for (const DrawMode mode : {DrawMode::best, DrawMode::whole, DrawMode::above, DrawMode::top})
    EXPECT_GT(seen[mode], 8) << static_cast<int>(mode);
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
