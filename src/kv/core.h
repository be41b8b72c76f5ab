// kv/core.h - the inside of KvCache: what its files share. See kv/cache.h for what it does.
//
//   cache.cc    roots, opening and closing, forwarding
//   attach.cc   prompts in the index: place, peek, attach, preempt, fork, truncate
//   step.cc     reserve, commit, publish
//   reclaim.cc  making room: eviction, slabs, parked sequences, resizing
//   lease.cc    pins and leases
//   compact.cc  lanes that keep different tokens
//   text.cc     blocks found by their own tokens
//   inspect.cc  stats, tree, evict, clear, check
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/cache.h"
#include "kv/evict/expiry.h"
#include "kv/prefix_store.h"
#include "kv/sequence_state.h"

namespace quire {

inline constexpr std::uint32_t kLeasesMax = 1 << 16;

class CacheCore {
 public:
  CacheCore(const CacheOptions& options, std::unique_ptr<Memory> memory, const Clock& clock);
  ~CacheCore();

  struct Root {
    RootIdentity identity;
    BlockKey key;
    NodeId node;
    const CacheLayout* layout;
  };
  struct Item {
    SequenceState* sequence;
    std::uint32_t serial, base, count;
    bool done;
  };
  struct Step {
    std::vector<Item> items;
    std::uint64_t ticket = 0;
    bool live = false, completed = false;
  };
  struct Lease {
    NodeId node = kNoNode;  // the last of its range
    std::uint32_t first_block = 0, end_block = 0, generation = 0;
    Nanoseconds expires = 0;
    std::uint8_t priority = 0;
    bool pin = false, live = false;
  };

  Nanoseconds tick();  // the time, told to everything that keeps it

  // cache.cc
  Result<RootId> root(const RootIdentity& identity, const Geometry& geometry);
  Result<SequenceState*> open(const SequenceOptions& options);
  void close(SequenceState& s);

  // attach.cc
  void place(SequenceState& s, std::span<const TokenId> prompt, std::span<const BlockKey> keys);
  Attached peek(const SequenceState& s) const;
  Attached attach(SequenceState& s);
  Result<SequenceState*> fork(const SequenceState& s, std::uint32_t token_capacity);
  std::uint32_t truncate(SequenceState& s, std::uint32_t length);
  bool look_back(SequenceState& s, std::uint32_t length);
  void preempt(SequenceState& s, Preempt how);
  void compute_keys(SequenceState& s);
  void supply_keys(SequenceState& s, std::span<const BlockKey> keys);
  struct Match {
    std::uint32_t blocks = 0, partial = 0, in_flight = 0;
    NodeId partial_node = kNoNode;
    bool window_dropped = false;
  };
  Match servable(const Cursor& cursor, const CacheLayout& layout, std::uint32_t limit) const;
  Reason why_missed(const Cursor& cursor, const Match& match, std::uint32_t prompt_length) const;

  // step.cc
  Result<std::uint32_t> reserve(std::span<const StepNeed> needs);
  Error no_room() const;
  void end_step(std::uint32_t step);
  void complete(Step& step);
  std::uint32_t commit(std::uint32_t step, std::size_t item, std::span<const TokenId> accepted);
  void finish_item(Item& item, std::uint32_t accepted);
  void publish(SequenceState& s);
  bool publish_block(SequenceState& s, std::uint32_t i);
  void announce(SequenceState& s);
  void set_path(SequenceState& s, std::uint32_t blocks);  // keeps the first nodes of its path
  void leave_window(SequenceState& s);
  std::uint32_t keepable(const SequenceState& s, std::uint32_t length) const;
  void refresh_offsets(SequenceState& s);
  void snapshot(SequenceState& s);
  void release_blocks(SequenceState& s);

  // reclaim.cc
  BlockRef take(SizeClass c);  // evicting what it must; empty when all is in use
  bool make_room(SizeClass c);
  bool evict_elsewhere(SizeClass c);
  bool empty_slab(std::optional<SizeClass> for_class, Reason reason,
                  double worth = std::numeric_limits<double>::infinity());
  bool feasible(std::span<const std::uint32_t> need) const;  // by SizeClass
  bool unpark_one();
  std::uint64_t resize(std::uint64_t budget_bytes);
  void park(SequenceState& s);
  void unpark(SequenceState& s);

  // lease.cc
  Result<LeaseId> lease(const SequenceState& s, const LeaseRequest& request);
  Status release(LeaseId id);
  Status extend(LeaseId id, Nanoseconds ttl);
  Result<LeaseInfo> lease_info(LeaseId id) const;
  const Lease* find_lease(LeaseId id) const;
  template <class F>
  void for_each_node(const Lease& lease, F&& f) const;
  void end_lease(std::uint32_t slot);
  void expire_leases();

  // compact.cc
  Status check_keep(const SequenceState& s, std::uint32_t group, std::uint32_t end,
                    std::span<const std::span<const std::uint32_t>> keep) const;
  Status compact(SequenceState& s, std::uint32_t group, std::uint32_t end,
                 std::span<const std::span<const std::uint32_t>> keep);

  Status own_lane(SequenceState& s, std::uint32_t group, std::uint32_t lane);

  // inspect.cc
  NodeInfo node_info(NodeId n) const;
  CacheStats stats() const;
  void check() const;

  CacheOptions options;
  const Clock& clock;
  Journal journal;
  Arena arena;
  BlockPool pool;
  PrefixStore store;

  std::vector<std::unique_ptr<CacheLayout>> layouts;
  std::vector<Root> roots;
  std::vector<std::unique_ptr<SequenceState>> sequences;
  std::vector<std::uint32_t> free_sequences;
  std::uint32_t open_sequences = 0, parked_count = 0;
  SequenceState* parked_first = nullptr;
  SequenceState* parked_last = nullptr;
  std::vector<Step> steps;
  std::vector<BlockRef>
      taken;  // scratch of reserve: blocks for the step, in the order they will be used
  std::vector<std::uint32_t> needed;  // scratch of reserve: blocks by SizeClass
  std::vector<BlockId> slab_blocks;   // scratch of empty_slab
  std::uint64_t evictions_since_balance = 0;
  std::vector<Lease> leases;
  std::vector<std::uint32_t> free_leases;
  Expiry lease_expiry;

  struct Counters {
    std::uint64_t requests, tokens_queried, tokens_hit, tokens_partial, tokens_in_flight,
        tokens_published;
    std::uint64_t blocks_published, blocks_deduplicated, blocks_copied;
  } counters{};
};

}  // namespace quire
