// kv/arena.h - one reservation, many block sizes: memory in slabs, extents out of slabs.
//
// Addresses are reserved once (kv/memory.h) and filled in *slabs*: runs of 2 MiB pages, as many as
// keep the part of a slab that holds no extent under 2 %. Every byte size is a *size class* with
// slabs of its own, made on demand; all classes share one byte budget that may grow and shrink. An
// emptied slab goes back (each class keeps at most one empty one as a spare, which any other class
// may have). Allocation fills the fullest slabs first, so that others empty. Who owns an extent is
// not known here: BlockPool (kv/pool.h) tags each with its block. Engine thread only.
//
//   TRY(auto memory, reserve_host_memory({.bytes = 4 * budget}));
//   Arena arena(std::move(memory), {.budget_bytes = budget});
//   const SizeClass c = arena.size_class(geometry.block_bytes(group));
//   std::optional<ArenaOffset> at = arena.allocate(c);   // empty: the budget is spent, see
//   short_of() std::byte* bytes = arena.at(*at); arena.free(*at);
//
// When a class is short its owner empties a slab of another one: pick a slab, drain(slab), move or
// evict each of for_each_live(slab), and the last free() gives its pages back to the budget.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/kv_view.h"
#include "kv/lazy_array.h"
#include "kv/memory.h"

namespace quire {

enum class SizeClass : std::uint32_t {};  // dense from 0
enum class SlabId : std::uint32_t {};     // the slab's first page

#if !defined(NDEBUG) || defined(QUIRE_SANITIZED)
inline constexpr bool kPoisonByDefault = true;
#else
inline constexpr bool kPoisonByDefault = false;
#endif
inline constexpr std::byte kPoison{0xff};  // a NaN in f32, f16 and bf16

struct ArenaOptions {
  std::uint64_t budget_bytes = 0;
  // Free extents are filled with kPoison and looked at when taken again: a write after free aborts.
  bool poison = kPoisonByDefault;
};

// What one class, or all together, does with its memory. committed = payload + rounding + free +
// slack.
struct ArenaStats {
  std::uint64_t committed_bytes = 0;  // real memory, in whole slabs
  std::uint64_t in_use_bytes = 0;     // extents handed out, at the class's size
  std::uint64_t payload_bytes = 0;    // the same at the size that was asked for
  std::uint64_t slack_bytes = 0;      // tails of slabs too small for an extent
  std::uint64_t spare_bytes = 0;      // slabs kept though empty
  std::uint64_t extents = 0;          // that the slabs can hold
  std::uint64_t extents_in_use = 0;
  std::uint64_t slabs = 0;
  std::uint64_t slabs_made = 0, slabs_returned = 0;  // since the start

  std::uint64_t free_bytes() const { return committed_bytes - slack_bytes - in_use_bytes; }
  std::uint64_t waste_bytes() const { return committed_bytes - payload_bytes; }
  // The part of committed memory that lies free inside slabs that cannot return.
  double fragmentation() const {
    return committed_bytes ? static_cast<double>(free_bytes() - spare_free_bytes) /
                                 static_cast<double>(committed_bytes)
                           : 0;
  }
  std::uint64_t spare_free_bytes = 0;  // spare_bytes without their slack
};

struct SlabInfo {
  SizeClass size_class;
  std::uint32_t page_count, capacity, in_use;
  bool draining;
};

class Arena {
 public:
  Arena(std::unique_ptr<Memory> memory, const ArenaOptions& options);
  ~Arena();
  Arena(const Arena&) = delete;

  Memory& memory() { return *memory_; }
  std::byte* base() const { return base_; }
  std::byte* at(ArenaOffset offset) const { return arena_at(base_, offset); }

  // The class of this size (rounded up to 256 bytes), made if new. Costs nothing until something is
  // allocated.
  SizeClass size_class(std::size_t bytes);
  std::size_t class_count() const { return classes_.size(); }
  std::size_t class_bytes(SizeClass c) const { return of(c).extent_bytes; }  // rounded
  std::size_t slab_bytes(SizeClass c) const { return of(c).slab_pages * page_bytes_; }
  std::uint32_t slab_capacity(SizeClass c) const { return of(c).capacity; }

  // O(1). Empty when the class has no free extent and the budget (or the machine: see last_error)
  // has no room for a slab even after other classes' spares have been taken.
  std::optional<ArenaOffset> allocate(SizeClass c, std::uint32_t tag = 0);
  void free(ArenaOffset offset);  // O(1); freeing what is not allocated aborts

  // A word for the owner, kept per live extent.
  std::uint32_t tag(ArenaOffset offset) const { return tags_[tag_index(offset)]; }
  void set_tag(ArenaOffset offset, std::uint32_t tag) { tags_[tag_index(offset)] = tag; }

  // How many extents of the class could be had right now: free ones in slabs not draining, and
  // those of the slabs that the unspent budget and all spares would make. Exact for one class at a
  // time.
  std::uint64_t available(SizeClass c) const;

  // The budget may sink below what is committed: spares go at once, and over_budget_bytes() says
  // how much the owner has still to empty. Until then no slab is made.
  void set_budget(std::uint64_t bytes);
  std::uint64_t budget_bytes() const { return budget_bytes_; }
  std::uint64_t over_budget_bytes() const {
    return total_.committed_bytes > budget_bytes_ ? total_.committed_bytes - budget_bytes_ : 0;
  }
  void trim();  // gives all spares back

  // Slabs. A draining slab hands out nothing and returns when its last extent is freed.
  SlabId slab_of(ArenaOffset offset) const {
    return static_cast<SlabId>(
        slab_of_page_[static_cast<std::size_t>(offset) >> units_per_page_log2_]);
  }
  SlabInfo slab(SlabId s) const;
  void drain(SlabId s);
  void stop_draining(SlabId s);
  template <class F>
  void for_each_slab(SizeClass c,
                     F&& f) const {  // f(SlabId); it may free extents of the slab it is given
    for (std::uint32_t s = of(c).first_slab; s != kNone;) {
      const std::uint32_t next = slabs_[s].next_in_class;
      f(static_cast<SlabId>(s));
      s = next;
    }
  }
  template <class F>
  void for_each_live(
      SlabId s, F&& f) const {  // f(ArenaOffset), ascending; it may free the extent it is given
    const Slab slab = slabs_[static_cast<std::uint32_t>(s)];
    const std::uint64_t* free_words = bitmap(static_cast<std::uint32_t>(s));
    std::uint32_t left = slab.in_use;
    for (std::uint32_t word = 0; left > 0; ++word) {
      const std::uint32_t bits = slab.capacity - word * 64;
      std::uint64_t live = ~free_words[word] & (bits >= 64 ? ~0ull : (1ull << bits) - 1);
      for (; live != 0; live &= live - 1, --left)
        f(offset_of(static_cast<std::uint32_t>(s), slab,
                    word * 64 + static_cast<std::uint32_t>(std::countr_zero(live))));
    }
  }

  const ArenaStats& stats() const { return total_; }
  const ArenaStats& stats(SizeClass c) const { return of(c).stats; }
  const Error* last_error() const {
    return last_error_ ? &*last_error_ : nullptr;
  }  // why a commit last failed

  // Recounts everything from the bitmaps; says what does not add up.
  Status check() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kBuckets =
      17;  // by fullness: 0 empty, 1..15 partly, 16 full (or draining: none)

  struct Slab {
    std::uint32_t size_class, page_count, capacity, in_use;
    std::uint32_t bucket;           // kNone: draining, in no list
    std::uint32_t first_free_word;  // no free extent lies before it
    std::uint32_t next, previous;   // in its bucket
    std::uint32_t next_in_class, previous_in_class;
  };
  struct Class {
    std::size_t extent_bytes, payload_bytes;
    std::uint32_t extent_units, slab_pages, capacity;
    std::uint32_t heads[kBuckets];  // slabs by fullness
    std::uint32_t occupied;         // bit b: heads[b] is not empty
    std::uint32_t first_slab;
    ArenaStats stats;
  };

  Class& of(SizeClass c) { return classes_[static_cast<std::size_t>(c)]; }
  const Class& of(SizeClass c) const { return classes_[static_cast<std::size_t>(c)]; }
  std::uint64_t* bitmap(std::uint32_t slab) {
    return &free_bits_[std::size_t{slab} * words_per_page_];
  }
  const std::uint64_t* bitmap(std::uint32_t slab) const {
    return &free_bits_[std::size_t{slab} * words_per_page_];
  }
  ArenaOffset offset_of(std::uint32_t s, const Slab& slab, std::uint32_t extent) const {
    return static_cast<ArenaOffset>((s << units_per_page_log2_) +
                                    extent * classes_[slab.size_class].extent_units);
  }
  std::size_t tag_index(
      ArenaOffset offset) const {  // dense from the slab's first unit on: touches little memory
    const std::uint32_t s = static_cast<std::uint32_t>(slab_of(offset)),
                        first = s << units_per_page_log2_;
    return first + (static_cast<std::uint32_t>(offset) - first) /
                       classes_[slabs_[s].size_class].extent_units;
  }

  std::uint32_t bucket_for(const Slab& slab) const;
  void link(std::uint32_t s);
  void unlink(std::uint32_t s);
  bool make_slab(Class& c);
  void return_slab(std::uint32_t s);
  bool take_spares(std::uint64_t bytes_wanted, const Class* except);
  std::optional<std::uint32_t> find_pages(std::uint32_t count);
  void mark_pages(std::uint32_t first, std::uint32_t count, bool used);
  void account(Class& c, std::int64_t slabs, std::int64_t extents);
  void poison(ArenaOffset offset, std::size_t bytes);

  std::unique_ptr<Memory> memory_;
  std::byte* base_;
  std::size_t page_bytes_;
  std::uint32_t units_per_page_log2_, page_count_, words_per_page_;
  bool poison_;
  std::uint64_t budget_bytes_;
  std::vector<Class> classes_;
  LazyArray<Slab> slabs_;                  // by first page
  LazyArray<std::uint32_t> slab_of_page_;  // by page
  LazyArray<std::uint64_t> free_bits_;     // per slab: capacity bits, set = free
  LazyArray<std::uint32_t> tags_;          // by unit
  LazyArray<std::uint64_t> used_pages_;    // bit per page
  std::uint32_t first_free_page_ = 0;      // no free page lies before it
  ArenaStats total_;
  std::optional<Error> last_error_;
};

}  // namespace quire
