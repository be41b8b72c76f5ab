// kv/sequence.h - one token sequence and the blocks that hold its keys and values.
//
// The engine owns Sequences; the cache owns the state behind them. A Sequence is a move-only
// handle. Closing it (or letting it go out of scope) gives every block back: at once, or, while a
// step still uses the blocks, when that step's Reservation ends.
//
//   known tokens   |------------- tokens() -------------------------------|
//   in the cache   |------- length() -------|--- reserved, not committed --|
//   published      |-- published_blocks() --|           (full, named, pure)
//
// A sequence is *placed* when its tokens are known but it holds no block. It then has a cursor in
// the prefix index; publishing and evicting move the cursor, so that nothing is matched twice.
// KvCache::attach turns the cursor into references, and KvCache::preempt turns these back into a
// cursor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "kernels/kv_view.h"
#include "kv/key.h"
#include "kv/token.h"

namespace quire {

class AdapterSet;  // model/adapter/adapter.h
class CacheCore;
class KvCache;
struct SequenceState;

// Options of a sequence. Everything that changes the numbers in its blocks is in `root` or
// `changes`.
struct SequenceOptions {
  RootId root{};                     // from KvCache::root(): weights, layout, tenant, ...
  std::uint32_t token_capacity = 0;  // most tokens it may ever hold; tables are sized once, here
  bool reuse = true;                 // look for cached blocks
  bool publish = true;               // leave blocks for others
  bool publish_generated = true;     // false: only blocks that lie within the prompt
  bool inline_keys =
      true;  // the cache computes keys itself; false: they come through supply_keys()
  std::uint32_t serve_max = 0xffffffffu;  // most tokens that attach may find in the cache
  bool recomputable =
      true;  // false: parked blocks are never dropped (a retainer's state cannot be recomputed)
  bool goes_below = true;                   // its blocks may leave memory for other places
  std::uint8_t priority = 50;               // 0-100, of the blocks it publishes
  Nanoseconds ttl = 0;                      // lease on the blocks it publishes; 0: none
  std::span<const KeyChange> changes = {};  // where a salt starts, media, ...; copied
  std::uint64_t request = 0;                // for the journal
  // What rows are computed with, from this token on, by whoever computes them. The cache only carries
  // it, to forks, too; `root` or `changes` name it.
  std::shared_ptr<const AdapterSet> adapters = {};
  std::uint32_t adapted_from = 0;
};

class Sequence {
 public:
  Sequence() = default;
  Sequence(Sequence&& o) noexcept : state_(std::exchange(o.state_, nullptr)) {}
  Sequence& operator=(Sequence&& o) noexcept {
    Sequence(std::move(o)).swap(*this);
    return *this;
  }
  ~Sequence() { close(); }

  void close();
  bool is_open() const { return state_ != nullptr; }

  std::span<const TokenId> tokens()
      const;                       // known tokens: the prompt, then what was committed beyond it
  std::uint32_t length() const;    // tokens whose K/V are in the cache
  std::uint32_t reserved() const;  // tokens of steps that are still in flight
  std::uint32_t prompt_length() const;
  std::uint32_t published_blocks() const;
  std::uint32_t pure_until() const;  // the first token that may not be published
  RootId root() const;
  const std::shared_ptr<const AdapterSet>& adapters() const;  // null: none
  std::uint32_t adapted_from() const;

  // Where blocks start, for kernels: entry i holds tokens [i*P, (i+1)*P). Stable until the
  // sequence's next reserve, attach, truncate or preempt. Entries that left a window are stale.
  const ArenaOffset* table(std::uint32_t group) const;

  // Keys of the next full blocks, in order, computed elsewhere (`inline_keys` false).
  void supply_keys(std::span<const BlockKey> keys);
  std::uint32_t keys_known() const;

  // Tokens from `token` on do not read their full chain, so they are never published.
  void limit_purity(std::uint32_t token);
  // A step produced NaN or Inf, or failed halfway: nothing more of this sequence is published, and
  // its private blocks are overwritten.
  void mark_faulted();
  bool faulted() const;

 private:
  friend class KvCache;
  friend class CacheCore;
  explicit Sequence(SequenceState* state) : state_(state) {}
  void swap(Sequence& o) noexcept { std::swap(state_, o.state_); }

  SequenceState* state_ = nullptr;
};

}  // namespace quire
