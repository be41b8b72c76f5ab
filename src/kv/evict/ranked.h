// kv/evict/ranked.h - least rank first, least recently used first within a rank: lfu and priority.
#pragma once

#include <bit>
#include <vector>

#include "kv/evict/evict.h"
#include "kv/evict/ladder.h"

namespace quire {

template <std::uint32_t kRanks, std::uint32_t (*rank)(const EvictEntry&)>
class Ranked final : public Evictor {
 public:
  explicit Ranked(const EvictOptions& o) : Evictor(o, kRanks * kRungs) {
    ladders_.reserve(kRanks);
    for (std::uint32_t r = 0; r < kRanks; ++r) ladders_.emplace_back(lists_, r * kRungs, kRungs);
  }

 private:
  static constexpr std::uint32_t kRungs = 64;

  void enter(std::uint32_t id, const EvictEntry*) override {
    const std::uint32_t r = rank(at(id));
    ladders_[r].insert(id, static_cast<std::uint64_t>(at(id).last_use));
    occupied_[r / 64] |= 1ull << (r % 64);
  }
  void leave(std::uint32_t id, bool) override {
    const std::uint32_t r = rank(at(id));
    ladders_[r].erase(id);
    if (ladders_[r].empty()) occupied_[r / 64] &= ~(1ull << (r % 64));
  }
  std::uint32_t choose() override {
    std::uint32_t word = 0;
    while (occupied_[word] == 0) ++word;
    return ladders_[word * 64 + static_cast<std::uint32_t>(std::countr_zero(occupied_[word]))]
        .front();
  }

  std::vector<Ladder<LinkedIds<Node>>> ladders_;
  std::uint64_t occupied_[(kRanks + 63) / 64] = {};
};

}  // namespace quire
