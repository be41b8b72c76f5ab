// cost - the least recompute time saved per byte leaves first, with aging.
//
// Greedy-dual: an entry's rank is L + value per byte, where L is the rank of the last entry that
// left. So unused entries sink relative to newcomers. Values are rounded to three binary digits.
// Entries of one rounded value form a queue, which is in order of rank by itself (the idea of CAMP,
// Middleware 2014). A tournament over the fronts of the queues finds the least. A call takes a
// constant number of steps, however many entries there are.
#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "kv/evict/evict.h"
#include "kv/evict/ladder.h"

namespace quire {
namespace {

// L over time: an entry's L is that of its last use, which may be long ago when it becomes
// evictable.
class Inflation {
 public:
  double at(Nanoseconds time) const {
    std::size_t low = 0, high = samples_.size();  // the last sample not later than `time`
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (samples_[middle].time <= time)
        low = middle + 1;
      else
        high = middle;
    }
    return low == 0 ? 0 : samples_[low - 1].level;
  }
  void rise(Nanoseconds time, double level) {
    if (level <= level_) return;
    level_ = level;
    if (!samples_.empty() && time <= samples_.back().time) {
      samples_.back().level = level;
      return;
    }
    if (samples_.size() == kSamples) {  // every other one will do
      for (std::size_t i = 0; 2 * i + 1 < kSamples; ++i) samples_[i] = samples_[2 * i + 1];
      samples_.resize(kSamples / 2);
    }
    samples_.push_back({time, level});
  }
  Inflation() { samples_.reserve(kSamples); }

 private:
  static constexpr std::size_t kSamples = 1024;
  struct Sample {
    Nanoseconds time;
    double level;
  };
  std::vector<Sample> samples_;
  double level_ = 0;
};

class Cost final : public Evictor {
 public:
  explicit Cost(const EvictOptions& o) : Evictor(o, kQueues * kRungs) {
    queues_.reserve(kQueues);
    for (std::uint32_t q = 0; q < kQueues; ++q) queues_.emplace_back(lists_, q * kRungs, kRungs);
    for (double& f : fronts_) f = kEmpty;
    for (std::uint32_t n = kQueues - 1; n > 0; --n) replay(n);
  }

 private:
  static constexpr std::uint32_t kQueues = 256, kRungs = 64;
  static constexpr double kEmpty = std::numeric_limits<double>::infinity();

  // Saved nanoseconds per byte, from 2^-32 to 2^32, rounded down to two bits after the leading one.
  static constexpr int kDropped = 50;  // of a double's 52
  static constexpr std::uint64_t kFirst = std::bit_cast<std::uint64_t>(0x1p-32) >> kDropped;
  static std::uint32_t queue_for(const EvictEntry& e) {
    const double per_byte =
        cached_value(e) / static_cast<double>(std::max<std::uint64_t>(e.bytes, 1));
    const std::uint64_t rounded = std::bit_cast<std::uint64_t>(per_byte) >> kDropped;
    return static_cast<std::uint32_t>(std::clamp(rounded, kFirst, kFirst + kQueues - 1) - kFirst);
  }
  static double queue_value(std::uint32_t q) {
    return std::bit_cast<double>((kFirst + q) << kDropped);
  }

  void enter(std::uint32_t id, const EvictEntry*) override {
    const std::uint32_t q = queue_for(at(id));
    lists_[id].queue = static_cast<std::uint16_t>(q);
    lists_[id].rank = inflation_.at(at(id).last_use) + queue_value(q);
    // In a queue the order of last use is the order of rank, and settles ties.
    queues_[q].insert(id, static_cast<std::uint64_t>(at(id).last_use));
    update(q);
  }
  void leave(std::uint32_t id, bool evicted) override {
    if (evicted && !picked_expired()) inflation_.rise(now(), lists_[id].rank);
    queues_[lists_[id].queue].erase(id);
    update(lists_[id].queue);
  }
  std::uint32_t choose() override { return queues_[winners_[1]].front(); }

  void update(std::uint32_t q) {
    const double front = queues_[q].empty() ? kEmpty : lists_[queues_[q].front()].rank;
    if (front == fronts_[q]) return;
    fronts_[q] = front;
    for (std::uint32_t n = (q + kQueues) / 2; n > 0; n /= 2) replay(n);
  }
  void replay(std::uint32_t n) {
    const auto winner = [&](std::uint32_t m) { return m >= kQueues ? m - kQueues : winners_[m]; };
    const std::uint32_t a = winner(2 * n), b = winner(2 * n + 1);
    winners_[n] = fronts_[b] < fronts_[a] ? b : a;
  }

  std::vector<Ladder<LinkedIds<Node>>> queues_;
  double fronts_[kQueues];          // least rank of each queue
  std::uint32_t winners_[kQueues];  // a tournament: [1] has the least of all
  Inflation inflation_;
};

}  // namespace

extern const EvictPolicy kEvictCost;
const EvictPolicy kEvictCost = {
    "cost", "least recompute time saved per byte first, with aging",
    [](const EvictOptions& o) -> std::unique_ptr<Evictor> { return std::make_unique<Cost>(o); }};

}  // namespace quire
