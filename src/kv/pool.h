// kv/pool.h - who holds which block.
//
// A block is one extent of the arena: all lanes of a layer group for P tokens, or one lane page.
// The pool knows only its size class and never looks inside. Readers hold a BlockRef, the prefix
// index holds a CachedBlock (one per block), and work in flight holds a fence. When all of them
// have let go, the extent returns to the arena and every BlockId of it becomes stale. Engine thread
// only.
//
//   BlockRef a = pool.take(size_class);     // empty() when there is no room: evict and try again
//   BlockRef b = a.share();                 // sharing is spelled out, never a copy
//   CachedBlock c = pool.cache(a.id());     // the index keeps it when a and b are gone
//   BlockRef d = c.share();                 // a hit
//   BlockRef e = pool.hold(id);             // from a remembered id; empty() if that block is gone
//
// Each block is in exactly one state: referenced (somebody reads or writes it), else fenced
// (nobody, but something in flight may still touch it), else cached (only the index holds it: may
// be evicted), else free.
//
// Fences come in two kinds. fence(id) holds one block (a copy to a tier). submit_step() ..
// complete_step() holds every block that was let go while a device step could still read it; steps
// complete in order.
//
// Moving: move(id) copies a block to another extent of its class, so that a slab can be emptied. A
// block cannot move while it is fenced or a step is in flight. The pool tells its listener, which
// updates the tables that name the old offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "kv/arena.h"

namespace quire {

struct BlockId {
  std::uint32_t index = UINT32_MAX;
  std::uint32_t generation = 0;
  bool operator==(const BlockId&) const = default;
};

enum class BlockState : std::uint8_t { free, cached, referenced, fenced };

class BlockPool;

// A move-only hold on a block.
enum class Hold : std::uint8_t {
  reader,  // reads it, or writes it
  cached,  // the index keeps it without counting as a reader; letting go is eviction
  fence,   // keeps its bytes where they are, but neither cached nor referenced
};

template <Hold kHold>
class [[nodiscard]] BlockHold {
 public:
  BlockHold() = default;
  BlockHold(BlockHold&& o) noexcept { swap(o); }
  BlockHold& operator=(BlockHold&& o) noexcept {
    BlockHold(std::move(o)).swap(*this);
    return *this;
  }
  inline ~BlockHold();

  bool empty() const { return pool_ == nullptr; }
  BlockId id() const {
    DCHECK(!empty());
    return id_;
  }
  inline BlockHold<Hold::reader> share() const requires(kHold != Hold::fence);
  inline ArenaOffset offset() const;
  inline std::byte* bytes() const;  // of a host arena
  inline bool unique() const        // nobody else, the index neither, holds it: it may be written
      requires(kHold == Hold::reader);

 private:
  friend class BlockPool;
  template <Hold>
  friend class BlockHold;
  BlockHold(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}
  void swap(BlockHold& o) noexcept {
    std::swap(pool_, o.pool_);
    std::swap(id_, o.id_);
  }
  BlockPool* pool_ = nullptr;
  BlockId id_;
};
using BlockRef = BlockHold<Hold::reader>;
using CachedBlock = BlockHold<Hold::cached>;
using BlockFence = BlockHold<Hold::fence>;

// Is told what happens to blocks. `owner` is what set_owner set, or 0. Calls come from inside pool
// functions: a listener must not take, drop or move blocks there, but may do so later.
class PoolListener {
 public:
  virtual ~PoolListener() = default;
  virtual void block_idle(BlockId, std::uint64_t owner) {}  // only the index holds it: evictable
  virtual void block_busy(BlockId, std::uint64_t owner) {}  // was idle; got a reader or a fence
  virtual void block_moved(BlockId, std::uint64_t owner, ArenaOffset from, ArenaOffset to) {}
};

// Blocks by state; free + cached + referenced + fenced = total, where total is what the committed
// slabs can hold.
struct Ledger {
  std::uint64_t free = 0, cached = 0, referenced = 0, fenced = 0, total = 0;
  bool operator==(const Ledger&) const = default;
};

struct PoolOptions {
  std::uint32_t blocks_max = 1u << 24;  // live at once; costs memory only as far as blocks exist
  PoolListener* listener = nullptr;
};

class BlockPool {
 public:
  BlockPool(Arena& arena, const PoolOptions& options);
  ~BlockPool();  // every block must have come home
  BlockPool(const BlockPool&) = delete;

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  void set_listener(PoolListener* listener) { listener_ = listener; }

  BlockRef take(SizeClass c);
  BlockRef hold(BlockId id);      // a further reader; empty when the block is gone or only fenced
  CachedBlock cache(BlockId id);  // the index's hold; aborts if there is one already
  BlockFence fence(BlockId id);

  // A device step: blocks let go between the two calls stay fenced until it completes (and all
  // before it).
  std::uint64_t submit_step();
  void complete_step(std::uint64_t ticket);  // in order
  std::uint64_t steps_in_flight() const { return submitted_ - completed_; }

  // Properties of a living block. A stale id aborts, except in alive() and in state(), which is
  // free.
  bool alive(BlockId id) const {
    return id.index < high_water_ && blocks_[id.index].generation == id.generation &&
           id.generation % 2;
  }
  BlockState state(BlockId id) const;
  BlockId id_at(std::uint32_t i) const { return {i, blocks_[i].generation}; }  // of a living block
  ArenaOffset offset(BlockId id) const { return blocks_[check(id)].offset; }
  SizeClass size_class(BlockId id) const {
    return static_cast<SizeClass>(blocks_[check(id)].size_class);
  }
  std::size_t bytes(BlockId id) const { return arena_.class_bytes(size_class(id)); }
  std::uint32_t readers(BlockId id) const { return blocks_[check(id)].readers; }
  bool cached(BlockId id) const { return blocks_[check(id)].cached; }
  std::uint64_t owner(BlockId id) const { return blocks_[check(id)].owner; }
  void set_owner(BlockId id, std::uint64_t owner) { blocks_[check(id)].owner = owner; }

  // Moving and emptying. move() fails and changes nothing if there is no other extent.
  bool movable(BlockId id) const;
  bool move(BlockId id);
  // Call once per step. If as many extents as a slab holds were free for some steps, the blocks of
  // the class's emptiest slab are moved to other slabs and that slab is given back. Does nothing
  // while a step is in flight.
  void tidy();
  void copy(BlockId to, BlockId from);  // all bytes; same class
  BlockId block_at(ArenaOffset offset) const;
  // f(BlockId); it may move or release that block and others.
  template <class F>
  void for_each_block(SlabId s, F&& f) const {
    arena_.for_each_live(s, [&](ArenaOffset at) { f(block_at(at)); });
  }

  // What a slab holds. Eviction alone can empty it only if `busy` (referenced or fenced) is 0.
  struct SlabUse {
    std::uint32_t busy, cached, free;
  };
  SlabUse slab_use(SlabId s) const;
  // The number of slabs of the class that evicting cached blocks alone would empty, a spare
  // included; O(1).
  std::uint64_t reclaimable_slabs(SizeClass c) const;
  // The number that could be emptied if busy blocks are moved together too (if all may be moved);
  // O(1).
  std::uint64_t reclaimable_slabs_by_moving(SizeClass c) const;

  Ledger ledger() const;             // all classes; O(classes)
  Ledger ledger(SizeClass c) const;  // O(1)

  // Recounts from the arrays and from the arena, independently of the counters; the message names
  // the first owners concerned. Cheap enough for every step of a simulation, not for production.
  Status check_ledger() const;

 private:
  template <Hold>
  friend class BlockHold;

  struct Block {  // half a cache line
    std::uint64_t owner;
    std::uint32_t generation;  // odd while the block lives
    std::uint32_t readers;
    ArenaOffset offset;
    std::uint32_t next;  // free, or waiting for a step: the next in line
    std::uint32_t size_class;
    std::uint16_t fences;  // by fence(), outstanding
    bool cached;           // the index holds it
    bool in_limbo;         // let go while a step was in flight
  };
  static_assert(sizeof(Block) == 32);
  struct Tally {                     // per size class
    std::uint64_t by_state[4] = {};  // free is counted by the arena instead
    std::uint64_t busy_slabs = 0;    // that hold a referenced or fenced block
    bool operator==(const Tally&) const = default;
  };
  struct Idle {  // per size class: what tidy() saw
    std::uint64_t free_least = 0, slabs = 0;
  };

  std::uint32_t check(BlockId id) const {
    CHECK(alive(id));
    return id.index;
  }
  static BlockState state_of(const Block& b) {
    if (b.readers > 0) return BlockState::referenced;
    if (b.fences > 0 || b.in_limbo) return BlockState::fenced;
    return b.cached ? BlockState::cached : BlockState::free;
  }
  static bool corpse(const Block& b) { return b.readers == 0 && !b.cached; }
  void change_state(std::uint32_t i, BlockState from, BlockState to);
  void count_busy(SizeClass c, ArenaOffset at, bool busy);
  void add_reader(std::uint32_t i);
  void let_go(Hold hold, std::uint32_t i);
  void settle(std::uint32_t i, BlockState from);  // a hold changed: book it, free what is nobody's
  void free_block(std::uint32_t i);
  void empty_a_slab(SizeClass c);

  Arena& arena_;
  PoolListener* listener_;
  LazyArray<Block> blocks_;                // by block index
  LazyArray<std::uint32_t> busy_in_slab_;  // by SlabId
  std::uint32_t high_water_ = 0, free_head_ = UINT32_MAX, blocks_max_;
  std::vector<Tally> tallies_;  // by size class
  std::vector<Idle> idle_;      // by size class
  std::uint64_t tidied_ = 0;
  // Blocks nobody holds that wait for a step, oldest first.
  std::uint32_t limbo_head_ = UINT32_MAX, limbo_tail_ = UINT32_MAX;
  LazyArray<std::uint64_t> limbo_ticket_;  // by block index: the step it waits for
  std::uint64_t submitted_ = 0, completed_ = 0;
};

template <Hold kHold>
BlockHold<kHold>::~BlockHold() {
  if (pool_) pool_->let_go(kHold, id_.index);
}
template <Hold kHold>
BlockRef BlockHold<kHold>::share() const requires(kHold != Hold::fence) {
  DCHECK(!empty());
  pool_->add_reader(id_.index);
  return {pool_, id_};
}
template <Hold kHold>
ArenaOffset BlockHold<kHold>::offset() const {
  return pool_->blocks_[id().index].offset;
}
template <Hold kHold>
std::byte* BlockHold<kHold>::bytes() const {
  return pool_->arena_.at(offset());
}
template <Hold kHold>
bool BlockHold<kHold>::unique() const requires(kHold == Hold::reader) {
  const BlockPool::Block& b = pool_->blocks_[id().index];
  return b.readers == 1 && !b.cached;
}

}  // namespace quire
