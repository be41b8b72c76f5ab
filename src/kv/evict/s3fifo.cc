// s3fifo - three queues (Yang et al., SOSP 2023). A block that is used once passes through a small
// queue and never disturbs the main one. A block that comes back after it left goes to the main
// queue.
#include <algorithm>
#include <bit>

#include "base/random.h"
#include "kv/evict/evict.h"
#include "kv/evict/ladder.h"

namespace quire {
namespace {

// Keys that left lately, in buckets of half a cache line: a mark of the key (one in 8,000 strangers
// is taken for known) and when it left, in ticks of a part of the entries.
class Recent {
 public:
  explicit Recent(std::uint32_t entries)
      : buckets_(std::bit_ceil(std::max(entries / kWays, 1u)), LazyPages::huge),
        tick_log2_(static_cast<std::uint32_t>(std::bit_width(entries >> 12))) {}

  void add(std::uint64_t key) {
    Bucket& b = bucket(key);
    const std::uint16_t now = ticks(++evictions_);
    std::uint32_t oldest = 0;
    for (std::uint32_t i = 1; i < kWays; ++i)
      if (age(now, b.when[i]) > age(now, b.when[oldest])) oldest = i;
    b.mark[oldest] = mark(key);
    b.when[oldest] = now;
  }
  bool take(std::uint64_t key, std::uint64_t within) {  // left at most `within` evictions ago?
    Bucket& b = bucket(key);
    for (std::uint32_t i = 0; i < kWays; ++i)
      if (b.mark[i] == mark(key)) {
        b.mark[i] = 0;
        return age(ticks(evictions_), b.when[i]) <= within >> tick_log2_;
      }
    return false;
  }

 private:
  static constexpr std::uint32_t kWays = 8;
  struct alignas(32) Bucket {
    std::uint16_t mark[kWays], when[kWays];
  };
  Bucket& bucket(std::uint64_t key) { return buckets_[mix64(key) & (buckets_.size() - 1)]; }
  static std::uint16_t mark(std::uint64_t key) {
    return static_cast<std::uint16_t>(mix64(key) >> 48 | 1);
  }
  std::uint16_t ticks(std::uint64_t evictions) const {
    return static_cast<std::uint16_t>(evictions >> tick_log2_);
  }
  static std::uint16_t age(std::uint16_t now, std::uint16_t then) {
    return static_cast<std::uint16_t>(now - then);
  }
  LazyArray<Bucket> buckets_;
  std::uint32_t tick_log2_;
  std::uint64_t evictions_ = 0;
};

// The main queue is a clock: an entry that was used n times (at most 3) survives n laps of its
// hand. There is one list for each lap from the current one on, so that no lap visits entries that
// survive it. When the current list is empty, the next list becomes the current one.
class S3Fifo final : public Evictor {
 public:
  explicit S3Fifo(const EvictOptions& o)
      : Evictor(o, kRungs + kLaps), small_(lists_, 0, kRungs), recent_(o.entries_max) {}

 private:
  static constexpr std::uint32_t kRungs = 1024, kLaps = 4;
  static constexpr std::uint16_t kInMain = kLaps;  // Node::queue: this, and uses (in use) or list

  void enter(std::uint32_t id, const EvictEntry* returning) override {
    const EvictEntry& e = at(id);
    std::uint16_t& queue = lists_[id].queue;
    std::uint32_t uses = e.hits;
    if (returning)
      uses = queue % kLaps + (e.hits - std::min(returning->hits, e.hits));
    else
      queue = recent_.take(e.key, main_size_ + 1) ? kInMain : 0;
    if (queue < kInMain && uses > 1) {  // earned its place, where it starts anew
      queue = kInMain;
      uses = 0;
    }
    uses = std::min(uses, kLaps - 1);
    if (queue < kInMain) {
      queue = static_cast<std::uint16_t>(uses);
      small_bytes_ += e.bytes;
      small_.insert(id, static_cast<std::uint64_t>(e.last_use));
    } else {
      const std::uint32_t list = (lap_ + uses) % kLaps;
      queue = static_cast<std::uint16_t>(kInMain + list);
      ++main_size_;
      lists_.push_back(kRungs + list, id);
    }
  }

  void leave(std::uint32_t id, bool evicted) override {
    std::uint16_t& queue = lists_[id].queue;
    if (queue < kInMain) {
      small_bytes_ -= at(id).bytes;
      small_.erase(id);
      if (evicted) recent_.add(at(id).key);
    } else {
      --main_size_;
      lists_.erase(id);
      queue = static_cast<std::uint16_t>(kInMain + (queue - lap_) % kLaps);
    }
  }

  std::uint32_t choose() override {
    if (small_.size() > 0 && (small_bytes_ * 10 > bytes() || main_size_ == 0))
      return small_.front();
    while (lists_.empty(kRungs + lap_)) lap_ = (lap_ + 1) % kLaps;
    const std::uint32_t id = lists_.front(kRungs + lap_);
    __builtin_prefetch(&lists_[lists_[id].next]);
    return id;
  }

  Ladder<LinkedIds<Node>> small_;
  Recent recent_;
  std::uint32_t lap_ = 0;
  std::uint64_t small_bytes_ = 0, main_size_ = 0;
};

}  // namespace

extern const EvictPolicy kEvictS3Fifo;
const EvictPolicy kEvictS3Fifo = {
    "s3fifo", "a small queue in front of the main one; resists scans",
    [](const EvictOptions& o) -> std::unique_ptr<Evictor> { return std::make_unique<S3Fifo>(o); }};

}  // namespace quire
