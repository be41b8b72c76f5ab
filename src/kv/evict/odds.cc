// odds - the least recompute time that is likely to be saved soon, per byte, leaves first.
//
// An entry's rank is what keeping it is worth (ReuseOdds: learned, by how often it was used and how
// long it has been idle) times its recompute time per byte and its priority. It knows what recency
// and frequency alone do not: the usual time between two uses, and the uses of blocks before they
// left, for as long as it remembers these (PastUses).
//
// Entries of one class and rounded value form a ladder by last use. A scan over the rungs of all
// ladders finds the rung of least rank; the next entries leave from there, as many as pay for the
// scan. So a call takes constant time on average, however many entries there are.
#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "kv/evict/evict.h"
#include "kv/evict/ladder.h"
#include "kv/evict/past_uses.h"
#include "kv/evict/reuse_odds.h"

namespace quire {
namespace {

class Odds final : public Evictor {
 public:
  explicit Odds(const EvictOptions& o) : Evictor(o, kQueues * kRungs), past_(o.entries_max) {
    queues_.reserve(kQueues);
    for (std::uint32_t q = 0; q < kQueues; ++q) queues_.emplace_back(lists_, q * kRungs, kRungs);
  }

  std::uint32_t stored(std::uint64_t key, Nanoseconds now) override {
    const std::optional<PastUses::Block> before = past_.take(key);
    if (!before) return 0;
    used(before->past, now - before->last_use, now);
    return before->past.hits + 1;
  }
  void idle(BlockPast past, Nanoseconds now) override {
    odds_.idle(ReuseOdds::class_of(past.hits, past.end), now);
    if (++learned_ % kUpdate == 0) odds_.update(now);
  }
  void used(BlockPast past, Nanoseconds idle, Nanoseconds) override {
    odds_.used(ReuseOdds::class_of(past.hits, past.end), idle);
  }

 private:
  static constexpr std::uint32_t kValues = 32, kQueues = kValues * ReuseOdds::kClasses;
  static constexpr std::uint32_t kRungs = 64, kUpdate = 2048;

  // Saved nanoseconds per byte, from 2^-8 to 2^24, in octaves.
  static constexpr int kDropped = 52;
  static constexpr std::uint64_t kFirst = std::bit_cast<std::uint64_t>(0x1p-8) >> kDropped;
  static std::uint32_t queue_for(const EvictEntry& e) {
    EvictEntry once = e;
    once.hits = 0;
    const double per_byte =
        cached_value(once) / static_cast<double>(std::max<std::uint64_t>(e.bytes, 1));
    const std::uint64_t rounded = std::bit_cast<std::uint64_t>(per_byte) >> kDropped;
    const auto value =
        static_cast<std::uint32_t>(std::clamp(rounded, kFirst, kFirst + kValues - 1) - kFirst);
    return ReuseOdds::class_of(e.hits, e.end) * kValues + value;
  }
  static double queue_value(std::uint32_t q) {
    return std::bit_cast<double>((kFirst + q % kValues) << kDropped);
  }

  void enter(std::uint32_t id, const EvictEntry*) override {
    const std::uint32_t q = queue_for(at(id));
    lists_[id].queue = static_cast<std::uint16_t>(q);
    queues_[q].insert(id, static_cast<std::uint64_t>(at(id).last_use));
    occupied_[q / 64] |= 1ull << (q % 64);
  }
  void leave(std::uint32_t id, bool evicted) override {
    const std::uint32_t q = lists_[id].queue;
    queues_[q].erase(id);
    if (queues_[q].empty()) occupied_[q / 64] &= ~(1ull << (q % 64));
    if (!evicted) return;
    past_.add(at(id).key, {at(id).hits, at(id).end}, at(id).last_use);
    if (paid_ > 0) --paid_;
  }
  std::uint32_t choose() override {
    if (paid_ == 0 || lists_.empty(least_)) scan();
    const std::uint32_t id = lists_.front(least_);
    __builtin_prefetch(&lists_[lists_[id].next]);
    return id;
  }

  void scan() {
    double best = std::numeric_limits<double>::infinity();
    std::uint64_t best_start = 0;
    std::uint32_t rungs = 0;
    for (std::uint32_t word = 0; word < kQueues / 64; ++word)
      for (std::uint64_t bits = occupied_[word]; bits != 0; bits &= bits - 1) {
        const std::uint32_t q = word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
        const double value = queue_value(q);
        queues_[q].for_each_rung([&](std::uint32_t list, std::uint64_t start) {
          ++rungs;
          const double rank =
              value * odds_.worth(q / kValues, now() - static_cast<Nanoseconds>(start));
          if (rank > best || (rank == best && start >= best_start)) return;
          best = rank;
          best_start = start;
          least_ = list;
        });
      }
    paid_ = std::max(16u, rungs / 32);
  }

  ReuseOdds odds_;
  PastUses past_;
  std::vector<Ladder<LinkedIds<Node>>> queues_;  // by class and value
  std::uint64_t occupied_[kQueues / 64] = {};
  std::uint64_t learned_ = 0;
  std::uint32_t least_ = 0;  // the list from which entries leave
  std::uint32_t paid_ = 0;   // evictions until the next scan
};

}  // namespace

extern const EvictPolicy kEvictOdds;
const EvictPolicy kEvictOdds = {
    "odds", "least recompute time likely to be saved soon per byte first; learns from all uses",
    [](const EvictOptions& o) -> std::unique_ptr<Evictor> { return std::make_unique<Odds>(o); }};

}  // namespace quire
