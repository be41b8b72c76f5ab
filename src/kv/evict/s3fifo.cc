// s3fifo - three queues (Yang et al., SOSP 2023): what is used once passes through a small queue
// and never disturbs the main one; what comes back after leaving goes straight to the main one.
#include <algorithm>

#include "kv/evict/evict.h"
#include "kv/evict/ghost.h"
#include "kv/evict/ladder.h"

namespace quire {
namespace {

class S3Fifo final : public Evictor {
 public:
  explicit S3Fifo(const EvictOptions& o)
      : Evictor(o),
        lists_(o.entries_max, kRungs + 1),
        small_(lists_, 0, kRungs),
        seen_(o.entries_max),
        ghosts_(std::min(o.entries_max, 1u << 18)) {}

 private:
  static constexpr std::uint32_t kRungs = 1024, kMain = kRungs;
  static constexpr std::uint32_t kUsesMax = 3;

  // What is known of an id; it outlives the entry's stay, as a block that is used leaves and
  // returns.
  struct Seen {
    std::uint64_t key;
    std::uint32_t hits;
    std::uint8_t uses;  // 0..kUsesMax
    bool in_main;
  };

  void enter(std::uint32_t id) override {
    const EvictEntry& e = at(id);
    Seen& s = seen_[id];
    if (s.key != e.key) {
      const std::optional<Ghost> ghost = ghosts_.find(e.key);
      const bool back = ghost && ghost->distance <= main_size_ + 1;
      if (ghost) ghosts_.forget(e.key);
      s = {.key = e.key, .hits = 0, .uses = 0, .in_main = back};
    }
    s.uses = static_cast<std::uint8_t>(std::min<std::uint64_t>(
        kUsesMax, std::uint64_t{s.uses} + (e.hits - std::min(s.hits, e.hits))));
    s.hits = e.hits;
    put(id);
  }

  void leave(std::uint32_t id, bool evicted) override {
    take(id);
    if (!evicted) return;
    if (!seen_[id].in_main) ghosts_.add(at(id).key, 1, Reason::evicted_capacity, now());
    seen_[id] = {};
  }

  std::uint32_t choose() override {
    for (std::uint32_t round = 0;; ++round) {  // a bound, so that one pick never scans a queue
      if (small_.size() > 0 && (small_bytes_ * 10 > bytes() || main_size_ == 0)) {
        const std::uint32_t id = small_.front();
        if (seen_[id].uses <= 1 || round >= kRoundsMax) return id;
        take(id);
        seen_[id].in_main = true;
        seen_[id].uses = 0;
        put(id);
      } else {
        const std::uint32_t id = lists_.front(kMain);
        if (seen_[id].uses == 0 || round >= kRoundsMax) return id;
        --seen_[id].uses;
        lists_.erase(id);
        lists_.push_back(kMain, id);
      }
    }
  }

  void put(std::uint32_t id) {
    if (seen_[id].in_main) {
      ++main_size_;
      lists_.push_back(kMain, id);
    } else {
      small_bytes_ += at(id).bytes;
      small_.insert(id, static_cast<std::uint64_t>(at(id).last_use));
    }
  }

  void take(std::uint32_t id) {
    if (seen_[id].in_main) {
      --main_size_;
      lists_.erase(id);
    } else {
      small_bytes_ -= at(id).bytes;
      small_.erase(id);
    }
  }

  static constexpr std::uint32_t kRoundsMax = 32;
  LinkedIds lists_;
  Ladder small_;
  LazyArray<Seen> seen_;
  GhostTable ghosts_;  // one byte per entry: distances are counts
  std::uint64_t small_bytes_ = 0, main_size_ = 0;
};

}  // namespace

extern const EvictPolicy kEvictS3Fifo;
const EvictPolicy kEvictS3Fifo = {
    "s3fifo", "a small queue in front of the main one; resists scans",
    [](const EvictOptions& o) -> std::unique_ptr<Evictor> { return std::make_unique<S3Fifo>(o); }};

}  // namespace quire
