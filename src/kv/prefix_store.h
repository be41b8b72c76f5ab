// kv/prefix_store.h - the prefix index together with the blocks of its nodes, and which of them may
// leave.
//
// A node keeps at most one block per layer group. A block of a *chain* group (full or latent
// attention) is useless without the blocks before it. So it leaves only when its node is a leaf,
// and the node leaves with it. Blocks of windows and states leave alone. Blocks that may leave are
// in the evictor of their size class. Blocks that a lease protects wait in a heap until it expires.
// Blocks that are read, fenced, pinned or not leaves are in neither. The pool tells when a block
// gets its first reader or loses its last. Engine thread only; allocates nothing after the start.
//
//   store.put(node, group, block.id());         // publish: the index holds it from now on
//   BlockRef hit = store.hold(node, group);     // a reader
//   store.evict_one(size_class, Reason::evicted_capacity, tenant);
//
//   prefix_store.cc  nodes, their blocks, and which of them may leave
//   evict_store.cc   who leaves (kv/tenants.h)
//   below_store.cc   blocks offered to what lies below memory
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kv/below.h"
#include "kv/block_times.h"
#include "kv/cache_layout.h"
#include "kv/content_table.h"
#include "kv/evict/evict.h"
#include "kv/evict/ghost.h"
#include "kv/index.h"
#include "kv/journal.h"
#include "kv/lease_heap.h"
#include "kv/pool.h"
#include "kv/tails.h"
#include "kv/tenants.h"

namespace quire {

// The place in the index of a sequence that holds nothing. Publishing moves it down and erasing
// moves it up, so that it is never matched again. The tokens and keys behind `chain` must outlive
// it.
struct Cursor {
  NodeId root = kNoNode;
  TokenChain chain;
  std::vector<NodeId> path;  // nodes of the first blocks, ready to serve
  Cursor* next = nullptr;    // at the same node
  Cursor* previous = nullptr;
  bool placed = false;

  NodeId node() const { return path.empty() ? root : path.back(); }
};

// What is known of a node besides its tokens.
struct CacheNode {
  Nanoseconds created = 0, last_used = 0, lease_until = 0;
  const CacheLayout* layout = nullptr;
  Cursor* cursors = nullptr;
  std::uint64_t realm = 0;      // of its root and of every change up to it: who may read it
  std::uint32_t root = 0;       // its place among the roots
  std::uint32_t holds = 0;      // running sequences whose last node this is: it stays
  std::uint32_t computing = 0;  // running sequences that are to compute it
  std::uint32_t stocked = 0;    // children that hold a block
  std::uint32_t hits = 0, pins = 0, leases = 0;
  std::uint8_t priority = kDefaultPriority;
  std::uint8_t below = 0;  // groups whose block is kept below memory, too
  bool end = false;        // when it lost its last reader, no block followed it
};
static_assert(kGroupsMax <= 8);

// The time to compute a block again, by its position. The `cost` evictor uses it.
struct RecomputeCost {
  double token_ns = 100e3;
  double token_position_ns = 10;  // attention: per token and position before it

  Nanoseconds block_ns(std::uint32_t tokens, std::uint32_t first_position) const {
    return static_cast<Nanoseconds>(tokens * (token_ns + token_position_ns * first_position));
  }
};

struct PrefixStoreOptions {
  std::uint32_t node_capacity = 0, tokens_per_block = 32, blocks_max = 0;
  std::uint32_t ghost_capacity = 65536, tenants_max = 4096;
  const EvictPolicy* policy = nullptr;
  Below* below = nullptr;
};

struct PrefixStoreStats {
  std::uint64_t blocks = 0, evicted_blocks = 0, evicted_bytes = 0, pinned_bytes = 0;
  BlockTimes times = {};
};

class PrefixStore final : public PoolListener {
 public:
  PrefixStore(const PrefixStoreOptions& options, BlockPool& pool, Journal& journal);
  ~PrefixStore() override;

  const PrefixIndex& index() const { return index_; }
  const CacheNode& node(NodeId n) const { return nodes_[raw(n)]; }
  const GhostTable& ghosts() const { return ghosts_; }
  GhostTable& ghosts() { return ghosts_; }
  const PrefixStoreStats& stats() const { return stats_; }
  std::uint64_t moves() const {
    return moves_;
  }  // blocks moved so far: tables older than this are stale
  const LeaseHeap& leased() const { return leased_; }
  const Tenants& tenants() const { return tenants_; }
  Tenants& tenants() { return tenants_; }
  TenantSlot tenant(NodeId n) const { return root_tenants_[nodes_[raw(n)].root]; }

  void set_now(Nanoseconds now) { now_ = now; }
  void set_cost(const RecomputeCost& cost) { cost_ = cost; }
  Nanoseconds block_ns(std::uint32_t tokens, std::uint32_t first) const {
    return cost_.block_ns(tokens, first);
  }
  void add_class(SizeClass c);  // an evictor for it

  // kNoNode when the index is full and nothing can leave it.
  NodeId add_root(std::uint32_t root, TenantSlot tenant, const CacheLayout& layout);
  void remove_root(NodeId n);  // that has nothing below it
  // The node for these tokens below `parent`, made if need be; kNoNode when the index is full and
  // nothing can leave it.
  NodeId need(NodeId parent, const BlockKey& key, std::uint64_t change, const TokenId* tokens);

  // Blocks of nodes.
  bool has(NodeId n, std::uint32_t group) const { return index_.present(n) >> group & 1; }
  bool ready(NodeId n) const;  // can be part of a hit
  BlockRef hold(NodeId n, std::uint32_t group) { return block(n, group).share(); }
  BlockId block_id(NodeId n, std::uint32_t group) const { return block(n, group).id(); }
  void put(NodeId n, std::uint32_t group, BlockId block);
  void became_ready(NodeId n);  // after the last put: cursors above it move on
  std::uint64_t bytes(NodeId n) const;
  std::uint64_t root_bytes(std::uint32_t root) const { return root_bytes_[root]; }

  // What lies below memory (kv/below.h).
  void offer(NodeId n, std::uint32_t group, Offer why);  // unless it has been taken
  void set_below(NodeId n, std::uint32_t group) {
    nodes_[raw(n)].below |= static_cast<std::uint8_t>(1u << group);
  }
  void not_below(const BlockKey& key, std::uint32_t group);
  bool offer(const BlockKey& key, Offer why);  // all its groups; false: one was not taken
  bool offer_rest(std::uint32_t& place, Offer why);

  // The realm of blocks after `n` whose key has this change.
  std::uint64_t realm(NodeId n, std::uint64_t change) const;
  // A node of the realm that can serve and has exactly these tokens, anywhere in the tree. If there
  // are many, only the newest few are considered; the choice among them is deterministic.
  NodeId find_text(std::uint64_t realm, std::span<const TokenId> tokens) const;
  // KvCache::continue_text, of a realm.
  void remember_tails() { tails_.emplace(); }
  std::uint32_t continue_text(std::uint64_t realm, std::span<const TokenId> known,
                              std::uint32_t count, std::vector<TokenId>& tokens) const;

  // Running sequences.
  void anchor(NodeId n) { ++nodes_[raw(n)].holds; }
  void unanchor(NodeId n);  // the node goes if nothing keeps it
  void begin_computing(NodeId n) { ++nodes_[raw(n)].computing; }
  void end_computing(NodeId n) { --nodes_[raw(n)].computing; }
  void touch(NodeId n, std::uint8_t priority, Nanoseconds lease_until, bool hit);

  // Waiting sequences.
  void place(Cursor& cursor);   // matches cursor.chain from the root
  void remove(Cursor& cursor);  // keeps its path
  void put_at(Cursor& cursor);  // where its path ends
  void follow(Cursor& cursor);  // its chain has become longer

  // Leases. A pinned node keeps its blocks whatever happens.
  void pin(NodeId n);
  void unpin(NodeId n);
  void lease(NodeId n, Nanoseconds until, std::uint8_t priority);
  void end_lease(NodeId n);

  // Eviction, to make room for a tenant. Each returns false when nothing (more) of that kind may
  // leave. A tenant within its share that has others to take from leaves its own to evict_own.
  bool evict_one(SizeClass c, Reason reason, TenantSlot by = kNoTenant);
  bool evict_any(Reason reason, TenantSlot by);  // whichever class: to make room in the index
  // Whichever class; leased ones last, or not at all.
  bool evict_own(TenantSlot t, Reason reason, bool leased);
  bool evict_leased(TenantSlot by = kNoTenant);       // forced: the lease that expires first
  bool keep_quota(TenantSlot t, std::uint64_t more);  // makes room for `more` bytes in its quota
  void expire();  // leases whose time has come no longer protect
  // Slabs are emptied block by block, in any order. A chain block leaves together with all blocks
  // that follow it, and stays if any of these is read, fenced or protected.
  bool protects(BlockId b, TenantSlot by) const;  // its node is pinned, leased, or within a share
  bool evict_with_descendants(BlockId b, Reason reason, TenantSlot by);
  // Evicts the parts of a subtree that may leave; `force` evicts pinned ones too.
  struct Swept {
    std::uint32_t blocks, in_use, pinned;
    std::uint64_t bytes;
  };
  Swept sweep(NodeId n, Reason reason, bool force, bool dry_run = false);
  double value(BlockId b) const;  // of keeping it, as the cost policy sees it
  double last_evicted_density() const {
    return last_evicted_density_;
  }  // value per byte of the last victim

  std::uint64_t evictable(SizeClass c) const {
    return evictors_[static_cast<std::size_t>(c)]->size();
  }
  static std::uint64_t owner_of(NodeId n, std::uint32_t group) {
    return (std::uint64_t{raw(n)} << 3 | group) + 1;
  }
  static NodeId node_of(std::uint64_t owner) { return static_cast<NodeId>((owner - 1) >> 3); }
  static std::uint32_t group_of(std::uint64_t owner) {
    return static_cast<std::uint32_t>((owner - 1) & 7);
  }

  void block_idle(BlockId b, std::uint64_t owner) override;
  void block_busy(BlockId b, std::uint64_t owner) override;
  void block_moved(BlockId, std::uint64_t, ArenaOffset, ArenaOffset) override { ++moves_; }

  void check() const;  // every block is where its state says; aborts otherwise

 private:
  static std::uint32_t raw(NodeId n) { return static_cast<std::uint32_t>(n); }
  CachedBlock& block(NodeId n, std::uint32_t g) {
    return blocks_[std::size_t{raw(n)} * kGroupsMax + g];
  }
  const CachedBlock& block(NodeId n, std::uint32_t g) const {
    return blocks_[std::size_t{raw(n)} * kGroupsMax + g];
  }
  Evictor& evictor(BlockId b) { return *evictors_[static_cast<std::size_t>(pool_.size_class(b))]; }
  const Evictor& evictor(BlockId b) const {
    return *evictors_[static_cast<std::size_t>(pool_.size_class(b))];
  }

  static Tenants::Shelf shelf_of(SizeClass c) { return static_cast<Tenants::Shelf>(c) + 1; }
  TenantSlot tenant_of(std::uint32_t block) const;
  bool may_take(NodeId n, TenantSlot by) const;
  std::uint32_t fair(Tenants::Shelf shelf, TenantSlot by, std::uint32_t best) const;
  void shelve(NodeId n, Tenants::Shelf shelf, std::uint32_t block);
  void add_pinned(NodeId n, std::uint64_t bytes);
  void remove_pinned(NodeId n, std::uint64_t bytes);

  bool may_leave(NodeId n, std::uint32_t group) const;
  EvictEntry entry(NodeId n, std::uint32_t group) const;
  void refresh(NodeId n);  // puts its blocks where they belong
  void refresh(NodeId n, std::uint32_t group);
  void withdraw(BlockId b);
  void drop_block(NodeId n, std::uint32_t group, Reason reason);
  void evict(NodeId n, std::uint32_t group, Reason reason);
  void drop_node(NodeId n, Reason reason);
  void prune(NodeId n);
  void expose(NodeId n);
  void hide(NodeId n);
  std::uint64_t digest(NodeId n) const;
  void remember_tails(NodeId n);
  std::uint32_t match_back(TextTails::Place place, std::span<const TokenId> known) const;
  NodeId way_on(NodeId n) const;
  void retreat_cursors(NodeId n);
  std::uint32_t gather(NodeId n);  // into subtree_
  bool idle(NodeId n) const;       // nobody reads or fences a block of it
  bool advance(Cursor& cursor);
  void link(Cursor& cursor, NodeId n);
  void unlink(Cursor& cursor, NodeId n);

  BlockPool& pool_;
  Journal& journal_;
  PrefixIndex index_;
  ContentTable contents_;           // of exposed nodes
  std::optional<TextTails> tails_;  // of nodes that became exposed since it is wanted
  std::vector<TokenId> tail_;       // scratch
  GhostTable ghosts_;
  LeaseHeap leased_;
  const EvictPolicy* policy_;
  Below* below_;
  std::uint32_t blocks_max_;
  RecomputeCost cost_;
  Nanoseconds now_ = 0;
  std::uint64_t moves_ = 0;
  double last_evicted_density_ = 0;
  PrefixStoreStats stats_;
  Tenants tenants_;
  std::vector<TenantSlot> root_tenants_;            // by root
  std::vector<std::uint64_t> root_bytes_;           // of cached blocks, by root
  std::vector<std::unique_ptr<Evictor>> evictors_;  // by SizeClass
  std::vector<CacheNode> nodes_;                    // by NodeId; never reallocated
  std::vector<CachedBlock> blocks_;                 // by NodeId and group; never reallocated
  LazyArray<NodeId> subtree_;  // scratch: a node and all below it, parents first
};

}  // namespace quire
