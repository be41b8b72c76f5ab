// kv/cache.h - the KV cache: one arena, every sequence, every cached prefix. The facade of kv/.
//
// The engine thread calls it; nothing here locks, blocks or knows a model. The life of a request:
//
//   RootId root = cache.root(identity, geometry).value();  // of a model, a policy and a tenant
//   Sequence s = cache.open({.root = root, .token_capacity = 4096});
//   Attached a = cache.attach(s, prompt);                  // a.tokens of the prompt are cached
//   while (...) {
//     const StepNeed need[] = {{&s, 512}, ...};            // rows of the next step
//     Result<Reservation> step = cache.reserve(need);      // room for all rows, or no change
//     KvSequenceView view = step.value().view(0, group, first_row);  // what kernels see
//     ...                                                  // the forward pass writes K/V, attends
//     step.value().commit(0, accepted);                    // these tokens now belong to s;
//   }                                                      // commit publishes blocks that are full
//   s.close();                                             // its blocks stay cached until evicted
//
// A failed step, a cancelled request and a rejected draft end alike: the cache takes back every row
// that was not committed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "kernels/geometry.h"
#include "kernels/kv_view.h"
#include "kv/arena.h"
#include "kv/block_times.h"
#include "kv/index.h"
#include "kv/journal.h"
#include "kv/key.h"
#include "kv/landing.h"
#include "kv/memory.h"
#include "kv/reason.h"
#include "kv/sequence.h"
#include "kv/tenants.h"

namespace quire {

class Below;
struct OfferedBlock;
class CacheCore;
enum class Offer : std::uint8_t;

struct CacheOptions {
  std::uint64_t budget_bytes =
      0;  // --kv-cache-memory; may grow later to what `memory` has reserved
  std::uint32_t tokens_per_block = 32;  // P, of every layout in this cache
  std::string evictor = "odds";
  KeySecret secret = KeySecret::random();
  double pin_budget = 0.5;      // share of the budget that pins may hold
  double tenant_pin_share = 1;  // of that, what one tenant may
  std::uint32_t tenant_leases_max = 4096;
  std::uint32_t node_capacity = 0;     // nodes of the prefix index; 0: a million
  std::uint32_t sequences_max = 4096;  // open at once, placed and closing ones included
  std::uint32_t steps_max = 4;         // reservations alive at once
  // Roots, and what they need: layouts and sizes of blocks. Those that nobody uses make way for others,
  // and a tenant has to make do with its own.
  std::uint32_t roots_max = 4096, tenant_roots_max = 64, layouts_max = 256, size_classes_max = 128;
  std::uint32_t step_items_max = 1024;  // sequences in one of them
  std::uint32_t ghost_capacity = 65536;
  std::uint32_t journal_capacity = 16384;
  bool poison = kPoisonByDefault;  // fill what is free, and notice writes to it
  Below* below = nullptr;          // is offered blocks (kv/below.h) until the cache ends
};

// What a prompt got from the cache. tokens + missed = the prompt, less its last token, which is
// always computed.
struct Attached {
  std::uint32_t tokens =
      0;  // served: whole blocks by reference, and `partial` slots of one more by copying
  std::uint32_t partial = 0;
  std::uint32_t in_flight = 0;   // further tokens that another sequence is computing now
  Reason reason = Reason::none;  // why the next token was not served
};

struct StepNeed {
  Sequence* sequence;
  std::uint32_t count;        // tokens the step computes, drafts included
  std::uint32_t drafted = 0;  // how many of the last may be rejected: their rows are kept
};

// Room for one step. Rows of item i are written at positions [past(i), past(i) + count(i)).
// Whatever was not committed when it ends is given back. Steps of a sequence commit in the order
// they were reserved.
class Reservation {
 public:
  Reservation(Reservation&& o) noexcept : core_(std::exchange(o.core_, nullptr)), step_(o.step_) {}
  Reservation& operator=(Reservation&&) = delete;
  ~Reservation();

  std::size_t size() const;
  std::uint32_t past(std::size_t item) const;
  std::uint32_t count(std::size_t item) const;
  KvSequenceView view(std::size_t item, std::uint32_t group, std::uint32_t first_row) const;

  // The first accepted.size() tokens of the item became part of its sequence. Tokens that were
  // known already (prompt) must be the same. Full blocks are sealed and published. Returns the
  // sequence's new length.
  std::uint32_t commit(std::size_t item, std::span<const TokenId> accepted);
  // Commits the first `accepted` tokens, all of which are known already.
  std::uint32_t commit(std::size_t item, std::uint32_t accepted);

 private:
  friend class KvCache;
  Reservation(CacheCore* core, std::uint32_t step) : core_(core), step_(step) {}

  CacheCore* core_;
  std::uint32_t step_;
};

// What one lane (layer, KV head) of a sequence still has of the tokens before the compaction: slot
// i lies in pages[i / P] and holds token positions[i].
struct LaneView {
  const ArenaOffset* pages;
  const std::uint32_t* positions;
  std::uint32_t slots;
};

enum class Preempt : std::uint8_t {
  recompute,  // let go of all blocks; published ones stay cached as long as they last
  park,       // keep them, to be dropped only after everything else that is not in use
};

struct LeaseRequest {
  std::uint32_t first_token = 0,
                end_token = 0xffffffffu;  // of the sequence; cut to whole published blocks
  Nanoseconds ttl = 0;                    // 0: until released
  std::uint8_t priority = 50;             // 0-100
  bool pin = false;  // never dropped while it lives; counted against the pin budget
  // Of a pin with a ttl: a cache breakpoint of a prompt. One that is asked for again is extended instead
  // of taken twice. Before a running sequence would fail for lack of room, it becomes a plain lease.
  bool breakpoint = false;
  std::string label = {};  // for people
};

enum class LeaseId : std::uint64_t {};

struct LeaseInfo {
  LeaseId id;
  std::string tenant, label;
  BlockKey node;
  std::uint32_t tokens;
  std::uint64_t bytes;
  Nanoseconds expires;  // 0: never
  std::uint8_t priority;
  bool pin;
};

// What a tenant may have, and has.
struct TenantInfo {
  TenantLimits limits;
  std::uint64_t bytes = 0, share_bytes = 0, pinned_bytes = 0;
  std::uint32_t leases = 0, roots = 0;
};

// One node of the prefix index, as `tree` shows it.
struct NodeInfo {
  BlockKey key, parent;  // parent is zero at a root
  RootId root;
  std::string_view tenant;
  std::uint32_t depth_tokens;  // from the root, this block included
  std::span<const TokenId> tokens;
  std::uint32_t children, hits, sequences;  // sequences that hold it now
  std::uint64_t bytes;
  Nanoseconds created, last_used, lease_until;
  std::uint8_t priority;
  bool pinned, in_flight;
  bool below;  // a tier has it, too, or will soon
  bool ready;  // can be part of a hit
};

// A cached block found by its tokens.
struct TextPlace {
  NodeId node;
  std::uint32_t end;  // tokens from the root to its last token, inclusive
  bool follows;       // it comes right after the place that the caller named
};

// All tokens and keys from the root to a place.
struct CachedText {
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;  // of its blocks
};

struct Evicted {
  std::uint32_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint32_t in_use = 0, pinned = 0;  // nodes left alone
};

struct CacheStats {
  std::uint64_t budget_bytes, slab_bytes, free_bytes, referenced_bytes, cached_bytes, fenced_bytes;
  std::uint64_t slack_bytes, waste_bytes;  // tails of slabs; all that is committed and no payload
  std::uint64_t pinned_bytes, pin_budget_bytes, leases;
  std::uint64_t referenced_blocks, cached_blocks, indexed_blocks, nodes, sequences, parked;
  std::uint64_t requests, tokens_queried, tokens_hit, tokens_partial, tokens_in_flight,
      tokens_published;
  std::uint64_t blocks_published, blocks_deduplicated, blocks_copied, blocks_moved;
  std::uint64_t tokens_adopted;  // that came from below
  std::uint64_t evicted_blocks, evicted_bytes;
  std::array<std::uint64_t, kReasonCount> evictions;  // by Reason
  std::array<std::uint64_t, 3> ghost_hits;  // tokens a cache of 2x, 4x, 8x would have served too
};

class KvCache;

// Keeps a root while it lives, though nothing of it is open or cached: its id and its geometry stay
// good. Sequences do the same. It ends before its cache.
class RootHold {
 public:
  RootHold() = default;
  RootHold(KvCache& cache, RootId root);
  RootHold(RootHold&& o) noexcept : core_(std::exchange(o.core_, nullptr)), root_(o.root_) {}
  RootHold& operator=(RootHold&& o) noexcept {
    std::swap(core_, o.core_);
    std::swap(root_, o.root_);
    return *this;
  }
  ~RootHold();

 private:
  CacheCore* core_ = nullptr;
  RootId root_{};
};

class KvCache {
 public:
  KvCache(const CacheOptions& options, std::unique_ptr<Memory> memory, const Clock& clock);
  ~KvCache();
  KvCache(const KvCache&) = delete;

  // Interns: the same identity and geometry give the same root. Geometries share the arena. A root
  // that no sequence and no RootHold has may be forgotten when another one is made; its id then opens
  // nothing and finds nothing. An error: there is no place for another.
  Result<RootId> root(const RootIdentity& identity, const Geometry& geometry);
  // The same without making one, for those who only look.
  std::optional<RootId> find_root(const RootIdentity& identity, const Geometry& geometry) const;
  bool alive(RootId root) const;
  // Of roots that are alive. The geometry stays where it is as long.
  const Geometry& geometry(RootId root) const;
  // Never given twice: an address may come to hold another geometry, so whatever is remembered of one
  // is remembered by this.
  std::uint64_t geometry_serial(RootId root) const;
  const BlockKey& root_key(RootId root) const;  // where key chains of this root start
  std::byte* arena() const;                     // base of every ArenaOffset

  // Sequences.
  Result<Sequence> open(const SequenceOptions& options);
  Attached attach(Sequence& s, std::span<const TokenId> prompt,
                  std::span<const BlockKey> keys = {});
  // attach in two halves. While a request waits it is only placed and holds nothing. peek says what
  // attach would serve now, and in_flight whether waiting longer would serve more.
  void place(Sequence& s, std::span<const TokenId> prompt, std::span<const BlockKey> keys = {});
  Attached peek(const Sequence& s) const;
  Attached attach(Sequence& s);

  Result<Reservation> reserve(std::span<const StepNeed> needs);

  // Blocks that come from below memory (kv/landing.h). Of a sequence of so many tokens, a group
  // may want only the last blocks.
  bool wants(const Sequence& s, std::uint32_t group, std::uint32_t block,
             std::uint32_t tokens) const;
  std::uint32_t serve_limit(const Sequence& s) const;  // tokens that need not be computed, at most
  // Room for a block; evicts what it must. Nothing: there is none.
  std::optional<Landing> land(const Sequence& s, std::uint32_t group);
  // The sequence has come to block `first`, and the next blocks have landed. It takes as many of
  // them as it can use, and says how many.
  std::uint32_t adopt(Sequence& s, std::uint32_t first, std::span<LandedBlock> blocks);
  std::uint64_t landings() const;  // that live and were not lent

  // Cold blocks: the first ones of a group that keeps every token. They are part of the sequence, are
  // not in the arena, and lie below under the keys of their chain. Entries of the table are kNoBlock.
  std::span<const BlockKey> chain_keys(Sequence& s);  // of its whole blocks
  // A whole block that is not cold, as it is offered below. Valid until the sequence changes.
  OfferedBlock offered(const Sequence& s, std::uint32_t group, std::uint32_t block) const;
  std::uint32_t cold_blocks(const Sequence& s, std::uint32_t group) const;
  void cool(Sequence& s, std::uint32_t group, std::uint32_t end);  // lets blocks before `end` go
  // Whole blocks up to `end`, which it has not computed, lie below. Its other groups keep nothing
  // of them.
  void adopt_cold(Sequence& s, std::uint32_t end);
  // Keys and values from this block on are gone: its tokens will be computed again.
  void lose(Sequence& s, std::uint32_t block);
  // A block's room for other uses of the sequence's owner; nobody is going to adopt it. When the owner
  // goes while somebody still writes, the room becomes a landing like others.
  std::optional<Landing> lend(const Sequence& s, std::uint32_t group);
  void leave_behind(Landing& lent);
  // Offers blocks that are not below yet, a few per call, from `place` on (0 at first). False: that
  // was all.
  bool offer_rest(std::uint32_t& place, Offer why);
  // Offers a cached block. True: all of it is below, or on its way.
  bool offer(const BlockKey& key, Offer why);
  void not_below(const BlockKey& key, std::uint32_t group);  // it was taken, and lost

  // A copy that shares every block. The first sequence that writes into a shared tail copies it;
  // nothing is copied before.
  Result<Sequence> fork(const Sequence& s, std::uint32_t token_capacity = 0);  // 0: as before
  // Appends known tokens to a prompt. All tokens it had before must be in the cache.
  void extend(Sequence& s, std::span<const TokenId> tokens);
  // Forgets tokens from `length` on. Returns how many tokens still have their K/V. That is less
  // than `length` if a window or a recurrent state cannot go back that far; the rest must be
  // computed again.
  std::uint32_t truncate(Sequence& s, std::uint32_t length);
  // After preempt the sequence is placed. attach(s) resumes it and says which tokens need not be
  // computed again.
  void preempt(Sequence& s, Preempt how);
  // Keeps the recurrent state at the current length (a multiple of P), so that later prompts find
  // it.
  void snapshot(Sequence& s);

  // Ragged retention: of the tokens before `end` (whole blocks) each lane keeps only those that
  // keep[lane] names, in pages of its own. The group's blocks before `end` are released. On failure
  // nothing changes. Tokens computed from here on read less than their full chain, so they stay
  // private. Kernels read the lanes, then the table from `end` on. Formats whose slots depend on each
  // other (KIVI's keys) keep whole blocks only. Tokens that are kept exact as rows (sinks, recent
  // ones) cannot be in lanes. Unchanged pages are not copied.
  Status compact(Sequence& s, std::uint32_t group, std::uint32_t end,
                 std::span<const std::span<const std::uint32_t>> keep);
  LaneView lane(const Sequence& s, std::uint32_t group, std::uint32_t lane) const;
  std::uint32_t ragged_until(const Sequence& s,
                             std::uint32_t group) const;  // tokens that are in lanes
  // The sequence between steps, for readers of its keys: no rows, `past` is its length.
  KvSequenceView view(const Sequence& s, std::uint32_t group) const;
  // Copies the pages of a lane that are shared with a fork, so that its rows may be overwritten. If
  // there is no room for the copies, it fails and changes nothing.
  Status own_lane(Sequence& s, std::uint32_t group, std::uint32_t lane);
  // Keeps a lane's first slots only; the pages after them are freed at once.
  void shrink_lane(Sequence& s, std::uint32_t group, std::uint32_t lane, std::uint32_t slots);

  // Leases.
  Result<LeaseId> lease(const Sequence& s, const LeaseRequest& request);
  Status release(LeaseId id);
  Status extend(LeaseId id, Nanoseconds ttl);
  // Of the pins that breakpoints took, one becomes a plain lease, for a request under this root that
  // could not go on otherwise. False: there is none.
  bool soften_breakpoint(RootId root);
  Result<LeaseInfo> lease_info(LeaseId id) const;
  // Of one tenant, or all: at most `limit`, those after the one named, in an order of their own.
  std::vector<LeaseInfo> leases(std::optional<std::string_view> tenant, LeaseId after,
                                std::size_t limit) const;

  // Tenants (kv/tenants.h). Limits hold from now on: what is over the quota leaves if it may.
  Status set_limits(std::string_view tenant, const TenantLimits& limits);
  TenantInfo tenant(std::string_view name) const;
  std::uint64_t sheltered_bytes(RootId root) const;  // idle, of others, and safe from its tenant
  // The next step may take from anybody's share: for what could not go on otherwise. False: that
  // would not help.
  bool waive_shares();

  // Looking and clearing. The const functions do not change the order of eviction.
  Attached lookup(RootId root, std::span<const TokenId> prompt,
                  std::span<const BlockKey> keys) const;
  // Finds a cached whole block of these tokens behind any prefix, under the root of `s` and the
  // salt that it begins with; if the block right `after` another has these tokens, that one. Its
  // time does not depend on how much is cached. The result is valid until the cache changes.
  std::optional<TextPlace> find_text(const Sequence& s, std::span<const TokenId> tokens,
                                     const std::optional<TextPlace>& after) const;
  CachedText text(const TextPlace& place) const;
  // From now on continue_text() finds what is cached.
  void remember_tails();
  // Appends up to `count` tokens that came after the last tokens of `known` in a cached text of the
  // sequence's root and salt. Returns how many tokens before them are equal; 0: none.
  std::uint32_t continue_text(const Sequence& s, std::span<const TokenId> known,
                              std::uint32_t count, std::vector<TokenId>& tokens) const;
  void tree(const std::function<void(const NodeInfo&)>& visit) const;
  // The node of a block that the journal names by its number (JournalRecord::extra) and key, if it still
  // is there and can be part of a hit.
  std::optional<NodeInfo> cached(NodeId node,
                                 std::uint64_t key_prefix) const;  // parents before children
  // Evicts the node and all below it; `force` evicts pinned nodes too. A dry run only counts.
  Result<Evicted> evict(const BlockKey& prefix, bool force = false, bool dry_run = false);
  Evicted clear(bool force = false, bool dry_run = false);
  CacheStats stats() const;
  const BlockTimes& block_times() const;
  std::uint64_t bytes(const Sequence& s) const;   // of all that it holds, shared blocks included
  std::uint64_t cached_bytes(RootId root) const;  // of its blocks in the index, in use or not
  const Journal& journal() const;
  void note(
      JournalRecord record);  // a decision about a request, taken outside; stamped with the time

  // Shrinks by evicting and moving; what is in use or pinned bounds it from below. Returns the
  // budget reached.
  std::uint64_t resize(std::uint64_t budget_bytes);
  // The measured cost of computing a token again, by which the `cost` evictor weighs blocks.
  void set_recompute_cost(double token_ns, double token_position_ns);
  // Expires leases. Call it between steps; reserve and attach call it too.
  void poll();
  // For idle times: gets a little memory from the system per call, until `ahead_bytes` more could
  // be used at once. False if nothing is left to do.
  bool prepare(std::uint64_t ahead_bytes);

  // Every block is free, cached, referenced or fenced, and every count agrees with what holds it.
  // Slow; tests and debug builds call it after each step.
  void check() const;

  CacheCore& core() { return *core_; }  // for the other files of kv/ and their tests

 private:
  std::unique_ptr<CacheCore> core_;
};

}  // namespace quire
