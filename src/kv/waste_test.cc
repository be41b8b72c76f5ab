// How much of the memory holds no live token, with blocks of 32 and mixed lengths of 50 to 4,000
// tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kernels/geometry.h"
#include "kv/pool.h"

namespace quire {
namespace {

struct Model {
  const char* name;
  std::uint32_t layers, kv_heads, head_dim;
};

LayerGroup group(const Model& m) {
  LayerGroup g;
  for (std::uint32_t l = 0; l < m.layers; ++l) g.layers.push_back(l);
  g.kv_heads = m.kv_heads;
  g.key_dim = g.value_dim = m.head_dim;
  g.format = find_format("f16").value();
  return g;
}

struct Sequence {
  std::uint32_t tokens = 0, end = 0;
  std::vector<BlockRef> blocks;
};

// Memory of addresses only: moves are counted, not carried out, so that the largest model costs
// nothing.
class Addresses final : public Memory {
 public:
  explicit Addresses(std::size_t bytes)
      : real_(std::move(reserve_host_memory({.bytes = bytes, .huge_pages = false}).value())) {}
  std::byte* base() const override { return real_->base(); }
  std::size_t reserved_bytes() const override { return real_->reserved_bytes(); }
  std::size_t page_bytes() const override { return real_->page_bytes(); }
  Status commit(std::size_t offset, std::size_t bytes) override {
    return real_->commit(offset, bytes);
  }
  void decommit(std::size_t offset, std::size_t bytes) override { real_->decommit(offset, bytes); }
  void copy(std::size_t, std::size_t, std::size_t bytes) override { moved_bytes += bytes; }
  void fill(std::size_t, std::size_t, std::byte) override {}
  bool filled(std::size_t, std::size_t, std::byte) const override { return true; }
  bool on_host() const override { return false; }

  std::uint64_t moved_bytes = 0;

 private:
  std::unique_ptr<Memory> real_;
};

constexpr std::uint32_t kLongest = 4096, kAtOnce = 64, kSteps = 4000;

// Sequences start with a prompt of a tenth to nine tenths of their final length, grow by one token
// per step and end at their length. Lengths are uniform, or log-uniform (many short ones).
class Server {
 public:
  Server(const Model& model, bool many_short) : many_short_(many_short), group_(group(model)) {
    draw();
  }

  // As many sequences as there is room for; when there is no free block the youngest is preempted.
  void step_saturated() {
    std::erase_if(sequences_, [](const Sequence& s) { return s.tokens == s.end; });
    while (arena_.available(class_) * 32 > waiting_.tokens + 32) admit();
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      ++sequences_[i].tokens;
      while (i < sequences_.size() && !grow(sequences_[i])) sequences_.pop_back();
    }
  }
  // Always 64, for which there is room to spare.
  void step_at_ease() {
    std::erase_if(sequences_, [](const Sequence& s) { return s.tokens == s.end; });
    while (sequences_.size() < kAtOnce) admit();
    for (Sequence& s : sequences_) {
      ++s.tokens;
      ASSERT_TRUE(grow(s));
    }
    pool_.tidy();
  }

  double live_bytes() const {
    double tokens = 0;
    for (const Sequence& s : sequences_) tokens += s.tokens;
    return tokens * geometry_.bytes_per_token(group_);
  }
  double naive_bytes() const {  // room for the longest from the start
    return static_cast<double>(sequences_.size()) * kLongest * geometry_.bytes_per_token(group_);
  }
  std::uint64_t budget_bytes() const { return budget_; }
  std::uint64_t committed_bytes() const { return arena_.stats().committed_bytes; }
  std::uint64_t moved_bytes() const { return memory_->moved_bytes; }

 private:
  void draw() {
    const double length =
        many_short_ ? 50 * std::pow(80.0, random_.unit()) : 50 + random_.unit() * 3950;
    waiting_ = {};
    waiting_.end = static_cast<std::uint32_t>(length);
    waiting_.tokens =
        std::max(1u, static_cast<std::uint32_t>(length * (0.1 + 0.8 * random_.unit())));
  }
  void admit() {
    ASSERT_TRUE(grow(waiting_));
    sequences_.push_back(std::move(waiting_));
    draw();
  }
  bool grow(Sequence& s) {
    while (s.blocks.size() * 32 < s.tokens) {
      s.blocks.push_back(pool_.take(class_));
      if (s.blocks.back().empty()) return s.blocks.pop_back(), false;
    }
    return true;
  }

  bool many_short_;
  Geometry geometry_;
  LayerGroup group_;
  std::uint64_t budget_ = geometry_.block_bytes(group_) * (kLongest / 32) * kAtOnce;
  Addresses* memory_ = new Addresses(2 * budget_);  // the arena's
  Arena arena_{std::unique_ptr<Memory>(memory_), {.budget_bytes = budget_, .poison = false}};
  BlockPool pool_{arena_, {.blocks_max = 1 << 20}};
  SizeClass class_ = arena_.size_class(geometry_.block_bytes(group_));
  Random random_{7};
  std::vector<Sequence> sequences_;
  Sequence waiting_;
};

class Waste : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(
    Models, Waste,
    testing::Values(Model{"SmolLM2-135M", 30, 3, 64}, Model{"Llama-3-8B", 32, 8, 128},
                    Model{"Llama-3-70B", 80, 8, 128}, Model{"Gemma-3-270M", 18, 1, 256}),
    [](const auto& i) {
      std::string name = i.param.name;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

const char* lengths(bool many_short) { return many_short ? "log-uniform" : "uniform"; }

TEST_P(Waste, OfAFullMemoryIsUnderFourPercentWhereNaivePreallocationWastesMoreThanHalf) {
  for (const bool many_short : {false, true}) {
    Server server(GetParam(), many_short);
    double live = 0, room = 0, naive = 0;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      server.step_saturated();
      if (step < kSteps / 4) continue;  // all kinds of ages by now
      live += server.live_bytes();
      naive += server.naive_bytes();
      room += static_cast<double>(server.budget_bytes());
    }
    const double waste = 1 - live / room, naive_waste = 1 - live / naive;
    std::printf("%s, %s lengths, memory full: %.1f %% holds no live token; naive: %.1f %%\n",
                GetParam().name, lengths(many_short), 100 * waste, 100 * naive_waste);
    EXPECT_LT(waste, 0.04);
    EXPECT_GT(naive_waste, 0.5);
  }
}

TEST_P(Waste, OfCommittedMemoryIsUnderFourPercentWithMemoryToSpare) {
  for (const bool many_short : {false, true}) {
    Server server(GetParam(), many_short);
    double live = 0, committed = 0, worst = 0;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      server.step_at_ease();
      if (step < kSteps / 4) continue;
      const double now = static_cast<double>(server.committed_bytes());
      live += server.live_bytes();
      committed += now;
      worst = std::max(worst, 1 - server.live_bytes() / now);
    }
    const double waste = 1 - live / committed;
    std::printf(
        "%s, %s lengths, memory to spare: %.1f %% holds no live token, at worst %.1f %%; a step "
        "moved %.2f %%\n",
        GetParam().name, lengths(many_short), 100 * waste, 100 * worst,
        100 * static_cast<double>(server.moved_bytes()) / committed);
    EXPECT_LT(waste, 0.04);
  }
}

}  // namespace
}  // namespace quire
