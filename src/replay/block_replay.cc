#include "replay/block_replay.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "base/random.h"

namespace quire {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;
constexpr Nanoseconds kTouch = 1'000'000;  // the evictor's clock goes on by this with every touch

struct Known {  // a block that some request has
  std::uint64_t key = 0;
  std::uint32_t parent = kNone;  // before it
  std::uint32_t children = 0;    // that are present
  std::uint32_t hits = 0;
  bool present = false, end = false;
  Nanoseconds last_use = 0, next_use = 0;
};

// Every request as numbers of known blocks.
struct Numbered {
  std::vector<std::vector<std::uint32_t>> requests;
  std::vector<Known> blocks;
};

Numbered number_blocks(std::span<const BlockChain> requests) {
  struct Place {
    std::uint32_t parent;
    std::uint64_t id;
    bool operator==(const Place&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Place& p) const {
      return mix64(p.id ^ mix64(std::uint64_t{p.parent} + 1));
    }
  };
  Numbered all;
  std::unordered_map<Place, std::uint32_t, Hash> numbers;
  for (const BlockChain& request : requests) {
    std::vector<std::uint32_t>& chain = all.requests.emplace_back();
    chain.reserve(request.ids.size());
    std::uint32_t parent = kNone;
    for (const std::uint64_t id : request.ids) {
      const auto [at, fresh] =
          numbers.try_emplace({parent, id}, static_cast<std::uint32_t>(all.blocks.size()));
      if (fresh) all.blocks.push_back({.key = all.blocks.size() + 1, .parent = parent});
      chain.push_back(parent = at->second);
    }
  }
  return all;
}

class Replay {
 public:
  Replay(Numbered numbered, const EvictPolicy& policy, std::uint64_t capacity)
      : requests_(std::move(numbered.requests)),
        blocks_(std::move(numbered.blocks)),
        capacity_(capacity) {
    evictor_ = policy.make({.entries_max = static_cast<std::uint32_t>(blocks_.size() + 1),
                            .next_use = [this](std::uint64_t key) {
                              return blocks_[static_cast<std::size_t>(key - 1)].next_use;
                            }});
    foresee();
  }

  BlockReplay run() {
    BlockReplay result{.unique_blocks = blocks_.size()};
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      const std::vector<std::uint32_t>& chain = requests_[r];
      result.blocks += chain.size();
      for (const std::uint32_t b : chain) {
        if (!blocks_[b].present) break;
        ++result.hit_blocks;
      }
      for (std::size_t i = chain.size(); i-- > 0;) {
        blocks_[chain[i]].next_use = next_uses_[r][i];
        touch(chain[i], i + 1 == chain.size());
      }
      if (!chain.empty() && blocks_[chain.back()].children == 0) offer(chain.back());
      while (capacity_ > 0 && present_ > capacity_) {
        evict();
        ++result.evicted_blocks;
      }
    }
    return result;
  }

 private:
  void foresee() {
    std::vector<Nanoseconds> next(blocks_.size(), std::numeric_limits<Nanoseconds>::max());
    next_uses_.resize(requests_.size());
    for (std::size_t r = requests_.size(); r-- > 0;)
      for (const std::uint32_t b : requests_[r]) {
        next_uses_[r].push_back(next[b]);
        next[b] = static_cast<Nanoseconds>(r);
      }
  }

  void touch(std::uint32_t b, bool end) {
    Known& block = blocks_[b];
    now_ += kTouch;
    if (block.present) {
      if (evictor_->contains(EvictId{b})) evictor_->remove(EvictId{b});
      evictor_->used({block.hits, block.end}, now_ - block.last_use, now_);
      ++block.hits;
    } else {
      block.present = true;
      block.hits = evictor_->stored(block.key, now_);
      ++present_;
      if (block.parent != kNone) ++blocks_[block.parent].children;
    }
    block.end = end;
    block.last_use = now_;
    evictor_->idle({block.hits, end}, now_);
  }

  void offer(std::uint32_t b) {
    const Known& block = blocks_[b];
    evictor_->add(EvictId{b}, {.key = block.key,
                               .bytes = 1 << 20,
                               .last_use = block.last_use,
                               .recompute_ns = 1 << 20,
                               .hits = block.hits,
                               .end = block.end});
  }

  void evict() {
    const std::optional<EvictId> victim = evictor_->pick(now_);
    CHECK(victim);
    Known& block = blocks_[static_cast<std::uint32_t>(*victim)];
    CHECK(block.present && block.children == 0);
    block.present = false;
    --present_;
    if (block.parent != kNone && --blocks_[block.parent].children == 0) offer(block.parent);
  }

  std::vector<std::vector<std::uint32_t>> requests_;
  std::vector<std::vector<Nanoseconds>> next_uses_;  // of each block of each request, after it
  std::vector<Known> blocks_;
  std::uint64_t capacity_, present_ = 0;
  Nanoseconds now_ = 0;
  std::unique_ptr<Evictor> evictor_;
};

}  // namespace

BlockReplay replay_blocks(std::span<const BlockChain> requests, const EvictPolicy& policy,
                          std::uint64_t capacity) {
  return Replay(number_blocks(requests), policy, capacity).run();
}

}  // namespace quire
