// s3fifo - three queues (Yang et al., SOSP 2023): what is used once passes through a small queue
// and never disturbs the main one; what comes back after leaving goes straight to the main one.
#include <algorithm>
#include <bit>

#include "base/random.h"
#include "kv/evict/evict.h"
#include "kv/evict/ladder.h"

namespace quire {
namespace {

// Keys that left lately, in buckets of a cache line: a mark of the key and when it left, counted in
// evictions.
class Recent {
 public:
  explicit Recent(std::uint32_t entries) : buckets_(std::bit_ceil(std::max(entries / kWays, 1u))) {}

  void add(std::uint64_t key) {
    Bucket& b = bucket(key);
    std::uint32_t oldest = 0;
    for (std::uint32_t i = 1; i < kWays; ++i)
      if (now_ - b.when[i] > now_ - b.when[oldest]) oldest = i;
    b.mark[oldest] = mark(key);
    b.when[oldest] = ++now_;
  }
  bool take(std::uint64_t key, std::uint64_t within) {  // left no more than so many evictions ago?
    Bucket& b = bucket(key);
    for (std::uint32_t i = 0; i < kWays; ++i)
      if (b.mark[i] == mark(key)) {
        b.mark[i] = 0;
        return now_ - b.when[i] < within;
      }
    return false;
  }

 private:
  static constexpr std::uint32_t kWays = 8;
  struct alignas(64) Bucket {
    std::uint32_t mark[kWays], when[kWays];
  };
  Bucket& bucket(std::uint64_t key) { return buckets_[mix64(key) & (buckets_.size() - 1)]; }
  static std::uint32_t mark(std::uint64_t key) {
    return static_cast<std::uint32_t>(mix64(key) >> 32) | 1;
  }
  LazyArray<Bucket> buckets_;
  std::uint32_t now_ = 0;
};

class S3Fifo final : public Evictor {
 public:
  explicit S3Fifo(const EvictOptions& o)
      : Evictor(o, kRungs + 1), small_(lists_, 0, kRungs), recent_(o.entries_max) {}

 private:
  static constexpr std::uint32_t kRungs = 1024, kMain = kRungs;
  static constexpr std::uint32_t kUsesMax = 3;
  static constexpr std::uint16_t kInMain = 4;  // Node::queue: uses counted (0..kUsesMax), and this

  std::uint32_t uses(std::uint32_t id) const { return lists_[id].queue % kInMain; }
  bool in_main(std::uint32_t id) const { return lists_[id].queue >= kInMain; }
  void set(std::uint32_t id, bool main, std::uint32_t uses) {
    lists_[id].queue = static_cast<std::uint16_t>((main ? kInMain : 0) + uses);
  }

  void enter(std::uint32_t id, const EvictEntry* returning) override {
    const EvictEntry& e = at(id);
    if (returning) {
      const std::uint64_t more = e.hits - std::min(returning->hits, e.hits);
      set(id, in_main(id),
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kUsesMax, uses(id) + more)));
    } else {
      set(id, recent_.take(e.key, main_size_ + 1), std::min(kUsesMax, e.hits));
    }
    put(id);
  }

  void leave(std::uint32_t id, bool evicted) override {
    take(id);
    if (evicted && !in_main(id)) recent_.add(at(id).key);
  }

  std::uint32_t choose() override {
    for (std::uint32_t round = 0;; ++round) {  // a bound, so that one pick never scans a queue
      if (small_.size() > 0 && (small_bytes_ * 10 > bytes() || main_size_ == 0)) {
        const std::uint32_t id = small_.front();
        if (uses(id) <= 1 || round >= kRoundsMax) return id;
        take(id);
        set(id, true, 0);
        put(id);
      } else {
        const std::uint32_t id = lists_.front(kMain);
        __builtin_prefetch(&lists_[lists_[id].next]);
        if (uses(id) == 0 || round >= kRoundsMax) return id;
        --lists_[id].queue;
        lists_.erase(id);
        lists_.push_back(kMain, id);
      }
    }
  }

  void put(std::uint32_t id) {
    if (in_main(id)) {
      ++main_size_;
      lists_.push_back(kMain, id);
    } else {
      small_bytes_ += at(id).bytes;
      small_.insert(id, static_cast<std::uint64_t>(at(id).last_use));
    }
  }

  void take(std::uint32_t id) {
    if (in_main(id)) {
      --main_size_;
      lists_.erase(id);
    } else {
      small_bytes_ -= at(id).bytes;
      small_.erase(id);
    }
  }

  static constexpr std::uint32_t kRoundsMax = 32;
  Ladder<LinkedIds<Node>> small_;
  Recent recent_;
  std::uint64_t small_bytes_ = 0, main_size_ = 0;
};

}  // namespace

extern const EvictPolicy kEvictS3Fifo;
const EvictPolicy kEvictS3Fifo = {
    "s3fifo", "a small queue in front of the main one; resists scans",
    [](const EvictOptions& o) -> std::unique_ptr<Evictor> { return std::make_unique<S3Fifo>(o); }};

}  // namespace quire
