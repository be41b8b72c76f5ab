// kv/evict/evict.h - which cached block leaves next.
//
// An evictor sees only entries that may leave: unread leaves of the index. So children leave before
// parents, and nothing in use ever leaves. Entries are dense ids of the owner's choice (a node, or
// a block of a node). Every call is O(1) and allocates nothing. Under every policy, entries whose
// lease has expired leave first; pinned entries are never added. A policy is one file and one line
// in evict_policies().
//
//   TRY(const EvictPolicy* policy, find_evict_policy("odds"));
//   std::unique_ptr<Evictor> evictor = policy->make({.entries_max = 1 << 20});
//   evictor->add(id, {.bytes = 737280, .last_use = now, .recompute_ns = 4000000, .hits = 3});
//   evictor->remove(id);                    // regained a reader, or is gone
//   while (short_of_room)
//     if (auto victim = evictor->pick(clock.now())) drop(*victim);   // it has left the evictor
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "kv/evict/expiry.h"
#include "kv/evict/list.h"

namespace quire {

enum class EvictId : std::uint32_t {};

inline constexpr std::uint8_t kDefaultPriority = 50;

struct EvictEntry {
  std::uint64_t key = 0;    // prefix of the block key: tells a returning block from a new one
  std::uint64_t bytes = 0;  // that leave with it
  Nanoseconds last_use = 0;
  Nanoseconds recompute_ns = 0;                  // to make it again, its parents being there
  Nanoseconds expires = 0;                       // when its lease runs out; 0 = no lease
  std::uint32_t hits = 0;                        // uses since it was stored, and as stored() says
  std::uint8_t priority : 7 = kDefaultPriority;  // 0 leaves first .. 100
  bool end : 1 = false;  // its last reader went no further: no block followed it then
};

// What is known of a block that is not a question of time.
struct BlockPast {
  std::uint32_t hits;
  bool end;
};

// What keeping the entry saves: its recompute time, times how often it is used, doubled for every
// ten points of priority. The `cost` policy ranks by this value per byte. The value of a slab is
// the sum over its entries.
double cached_value(const EvictEntry& entry);

struct EvictOptions {
  std::uint32_t entries_max = 1u << 24;  // ids are below this; only those used cost memory
  // In a replay: when the block of that key is used next. Needed by clairvoyant.
  std::function<Nanoseconds(std::uint64_t key)> next_use = {};
};

class Evictor {
 public:
  virtual ~Evictor() = default;

  void add(EvictId id, const EvictEntry& entry);
  void remove(EvictId id);                       // must be in
  std::optional<EvictId> pick(Nanoseconds now);  // removes what it returns; empty when none is left
  std::optional<EvictId> peek(Nanoseconds now);  // what pick() would return, which stays
  bool contains(EvictId id) const { return lists_[static_cast<std::uint32_t>(id)].present; }
  const EvictEntry& entry(EvictId id) const { return lists_[static_cast<std::uint32_t>(id)]; }

  // What happens to all blocks, leaves or not, for policies that learn from it. A block was computed:
  // returns how often it was used before, as far as the policy remembers; its hits begin with that.
  virtual std::uint32_t stored(std::uint64_t /*key*/, Nanoseconds /*now*/) { return 0; }
  // A block has no reader any more.
  virtual void idle(BlockPast /*past*/, Nanoseconds /*now*/) {}
  // A block that was idle for this long has a reader.
  virtual void used(BlockPast /*past*/, Nanoseconds /*idle*/, Nanoseconds /*now*/) {}

  std::uint64_t size() const { return size_; }
  std::uint64_t bytes() const { return bytes_; }
  bool picked_expired() const { return picked_expired_; }  // the last pick()'s lease had run out

 protected:
  struct alignas(64) Node : EvictEntry {  // all that is known of an id, in one cache line
    bool present;                         // from here on in the padding of EvictEntry
    std::uint16_t queue;                  // for the policy; kept while the block is in use
    std::uint32_t next, previous;
    double rank;  // for the policy
  };
  static_assert(sizeof(Node) == 64);

  Evictor(const EvictOptions& options, std::uint32_t list_count);

  // To be implemented by a policy. An id is in the policy's lists from enter() to leave(); choose()
  // names one without removing it. `returning` is the entry as it was when it last left, if it is
  // the same block and left because it was used, not because it was evicted.
  virtual void enter(std::uint32_t id, const EvictEntry* returning) = 0;
  virtual void leave(std::uint32_t id, bool evicted) = 0;
  virtual std::uint32_t choose() = 0;  // only called when size() > 0

  const EvictEntry& at(std::uint32_t id) const { return lists_[id]; }
  Nanoseconds now() const { return now_; }  // of the last pick

  LinkedIds<Node> lists_;

 private:
  void take_out(std::uint32_t id, bool evicted);

  Expiry expiry_;
  std::uint64_t size_ = 0, bytes_ = 0;
  Nanoseconds now_ = 0;
  bool picked_expired_ = false;
};

struct EvictPolicy {
  std::string_view name;     // as on the command line
  std::string_view summary;  // one line for --help
  std::unique_ptr<Evictor> (*make)(const EvictOptions&);
};

std::span<const EvictPolicy* const> evict_policies();  // the first is the default
Result<const EvictPolicy*> find_evict_policy(std::string_view name);
// Those of a server, and clairvoyant.
std::span<const EvictPolicy* const> replay_evict_policies();
Result<const EvictPolicy*> find_replay_evict_policy(std::string_view name);

}  // namespace quire
