// kv/core.h - the inside of KvCache: what its files share. See kv/cache.h for what it does.
//
//   cache.cc    opening and closing, forwarding
//   roots.cc    roots, layouts and sizes of blocks: made, found, and forgotten for others
//   attach.cc   prompts in the index: place, peek, attach, preempt, fork, truncate
//   step.cc     reserve, commit, publish
//   adopt.cc    blocks that come from below memory
//   cold.cc     blocks of a sequence that stay there
//   reclaim.cc  making room: eviction, slabs, parked sequences, resizing
//   lease.cc    pins and leases
//   compact.cc  lanes that keep different tokens
//   text.cc     blocks found by their own tokens
//   tails.cc    how cached texts went on
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
    CacheLayout* layout;  // none: the place is free
    std::uint32_t generation;
    std::uint32_t users;  // open sequences and RootHolds
    Nanoseconds last_used;
  };
  struct Item {
    SequenceState* sequence;
    RootId root;  // of the sequence, which may be closed meanwhile
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
    bool pin = false, breakpoint = false, live = false;
    std::string label = {};
  };

  Nanoseconds tick();  // the time, told to everything that keeps it

  // roots.cc
  Result<RootId> root(const RootIdentity& identity, const Geometry& geometry);
  std::optional<RootId> find_root(const RootIdentity& identity, const BlockKey& key) const;
  RootIdentity whole_identity(const RootIdentity& identity, const Geometry& geometry,
                              const Digest& layout) const;
  RootId id_of(std::uint32_t slot) const;
  const Root* find_root(RootId id) const;  // none: it is not alive
  Root& at(RootId id);                     // of one that is
  const Root& at(RootId id) const;
  void leave_root(RootId id);  // a user of it ends
  Result<CacheLayout*> layout_for(const Geometry& geometry, const Digest& digest);
  std::optional<SizeClass> class_for(std::size_t bytes, const CacheLayout& making);
  enum class RootsOf : std::uint8_t { tenant, all, lone_layouts };
  bool forget_root(RootsOf which, const std::string& tenant);
  void remove_root(std::uint32_t slot);

  // cache.cc
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
  Status count_needed(std::span<const StepNeed> needs);
  bool writes_into_shared(const SequenceState& s, const BlockTable& t) const;
  Error no_room() const;
  void end_step(std::uint32_t step);
  void complete(Step& step);
  std::uint32_t commit(std::uint32_t step, std::size_t item, std::span<const TokenId> accepted);
  void finish_item(Item& item, std::uint32_t accepted);
  void publish(SequenceState& s,
               std::uint32_t below_until = 0);  // blocks before it came from below
  bool publish_block(SequenceState& s, std::uint32_t i, bool from_below);
  template <class F>
  bool fits_quota(TenantSlot t, F missing);
  void announce(SequenceState& s);
  void set_path(SequenceState& s, std::uint32_t blocks);  // keeps the first nodes of its path
  void leave_window(SequenceState& s);
  std::uint32_t keepable(const SequenceState& s, std::uint32_t length) const;
  void refresh_offsets(SequenceState& s);
  void snapshot(SequenceState& s);
  void release_blocks(SequenceState& s);

  // adopt.cc
  bool windows_whole(const SequenceState& s, std::uint32_t first,
                     std::span<const LandedBlock> blocks) const;
  std::optional<Landing> land(const SequenceState& s, std::uint32_t group, std::uint64_t& count);
  std::uint32_t adopt(SequenceState& s, std::uint32_t first, std::span<LandedBlock> blocks);

  // cold.cc
  void cool(SequenceState& s, std::uint32_t group, std::uint32_t end);
  void adopt_cold(SequenceState& s, std::uint32_t end);
  void lose(SequenceState& s, std::uint32_t block);

  // reclaim.cc
  // For the sequence, evicting what it must; empty when all is in use.
  BlockRef take(SizeClass c, const SequenceState& s);
  bool make_room(SizeClass c, TenantSlot by);
  bool evict_elsewhere(SizeClass c, TenantSlot by);
  bool empty_slab(std::optional<SizeClass> for_class, Reason reason, TenantSlot by,
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
  Status may_lease(const Lease& lease, TenantSlot tenant, std::uint64_t request);
  LeaseInfo lease_info(std::uint32_t slot) const;
  const Lease* find_lease(LeaseId id) const;
  template <class F>
  void for_each_node(const Lease& lease, F&& f) const;
  void end_lease(std::uint32_t slot);
  void expire_leases();
  void keep_until(std::uint32_t slot, Nanoseconds expires);
  bool soften_breakpoint(TenantSlot own);
  void forget_breakpoint(std::uint32_t slot);

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
  std::vector<std::uint32_t> free_roots;
  std::unordered_multimap<BlockKey, std::uint32_t, BlockKeyHash> root_slots;
  std::vector<std::unique_ptr<SequenceState>> sequences;
  std::vector<std::uint32_t> free_sequences;
  std::uint32_t open_sequences = 0, parked_count = 0;
  SequenceState* parked_first = nullptr;
  SequenceState* parked_last = nullptr;
  std::vector<Step> steps;
  std::vector<BlockRef>
      taken;  // scratch of reserve: blocks for the step, in the order they will be used
  std::vector<std::uint32_t> needed;  // scratch of reserve: blocks by SizeClass
  struct Want {
    SequenceState* sequence;
    SizeClass size_class;
    std::uint32_t blocks;
  };
  std::vector<Want> wants;           // scratch of reserve: the same by sequence
  bool shares_waived = false;        // until a step finds room
  std::vector<BlockId> slab_blocks;  // scratch of empty_slab
  std::uint64_t evictions_since_balance = 0;
  std::uint64_t landings = 0, lent = 0;  // that live
  std::vector<Lease> leases;
  std::vector<std::uint32_t> free_leases;
  Expiry lease_expiry;
  std::unordered_map<std::uint32_t, std::uint32_t> breakpoints;  // leases by their node; pins only

  struct Counters {
    std::uint64_t requests, tokens_queried, tokens_hit, tokens_partial, tokens_in_flight,
        tokens_published;
    std::uint64_t blocks_published, blocks_deduplicated, blocks_copied, tokens_adopted;
  } counters{};
};

}  // namespace quire
