// kv/arena.h - one reservation, many block sizes: memory in slabs, extents out of slabs.
//
// Addresses are reserved once (kv/memory.h) and filled in *slabs*: runs of 2 MiB pages, long enough
// that less than 2 % of a slab holds no extent. Every byte size is a *size class* with slabs of its
// own, made on demand. All classes share one byte budget, which may grow and shrink. An emptied
// slab goes back to the system; each class keeps at most one empty slab as a spare, which any other
// class may take. Allocation fills the fullest slabs first, so that others empty. The arena does
// not know who owns an extent: BlockPool (kv/pool.h) tags each with its block. Engine thread only.
//
//   TRY(auto memory, reserve_host_memory({.bytes = 4 * budget}));
//   Arena arena(std::move(memory), {.budget_bytes = budget});
//   const SizeClass c = arena.size_class(geometry.block_bytes(group));
//   std::optional<ArenaOffset> at = arena.allocate(c);   // empty: the budget is spent
//   std::byte* bytes = arena.at(*at);
//   arena.free(*at);
//
// When a class has no room, its owner empties a slab of another class: it picks a slab, calls
// drain(slab), then moves or evicts each extent of for_each_live(slab). The last free() gives the
// slab's pages back to the budget.
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
  // Free extents are filled with kPoison and checked when they are taken again: a write after free
  // aborts.
  bool poison = kPoisonByDefault;
};

// How one class, or all classes together, use their memory.
// committed = in use + free + slack;  in use = payload + rounding.
struct ArenaStats {
  std::uint64_t committed_bytes = 0;  // real memory, in whole slabs
  std::uint64_t in_use_bytes = 0;     // extents handed out, at the class's size
  std::uint64_t payload_bytes = 0;    // extents handed out, at the size that was asked for
  std::uint64_t slack_bytes = 0;      // tails of slabs too small for an extent
  std::uint64_t spare_bytes = 0;      // slabs kept though empty
  std::uint64_t extents = 0;          // that the slabs can hold
  std::uint64_t extents_in_use = 0;
  std::uint64_t slabs = 0;
  std::uint64_t slabs_made = 0, slabs_returned = 0;  // since the start

  std::uint64_t free_bytes() const { return committed_bytes - slack_bytes - in_use_bytes; }
  std::uint64_t waste_bytes() const { return committed_bytes - payload_bytes; }
  // The share of committed memory that is not handed out and that no other class can take.
  double fragmentation() const {
    if (committed_bytes == 0) return 0;
    return static_cast<double>(committed_bytes - spare_bytes - in_use_bytes) /
           static_cast<double>(committed_bytes);
  }
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
  const Memory& memory() const { return *memory_; }
  std::byte* base() const { return base_; }
  std::byte* at(ArenaOffset offset) const { return arena_at(base_, offset); }

  // The class of this size (rounded up to 256 bytes), made if new. Costs nothing until something is
  // allocated.
  SizeClass size_class(std::size_t bytes);
  std::optional<SizeClass> find_class(std::size_t bytes) const;
  // Makes another size of a class that nobody uses any more. False: extents of it are still out.
  bool recycle_class(SizeClass c, std::size_t bytes);
  std::size_t class_count() const { return classes_.size(); }
  std::size_t class_bytes(SizeClass c) const { return of(c).extent_bytes; }  // rounded
  std::size_t slab_bytes(SizeClass c) const { return of(c).slab_pages * page_bytes_; }
  std::uint32_t slab_capacity(SizeClass c) const { return of(c).capacity; }

  // O(1). Empty if the class has no free extent and no slab can be made: may_grow is false, or the
  // budget (or the machine: see last_error) has no room even after taking other classes' spares.
  std::optional<ArenaOffset> allocate(SizeClass c, std::uint32_t tag = 0, bool may_grow = true);
  void free(ArenaOffset offset);  // O(1); freeing what is not allocated aborts

  // A word for the owner, kept per live extent.
  std::uint32_t tag(ArenaOffset offset) const { return tags_[tag_index(offset)]; }
  void set_tag(ArenaOffset offset, std::uint32_t tag) { tags_[tag_index(offset)] = tag; }

  // How many extents of the class could be allocated right now: free ones in slabs that are not
  // draining, and those of slabs that could be made from the unspent budget and all spares. Exact
  // for one class at a time.
  std::uint64_t available(SizeClass c) const;

  // The budget may sink below what is committed. Spares then go at once, over_budget_bytes() says
  // how much the owner still has to empty, and until then no slab is made.
  void set_budget(std::uint64_t bytes);
  std::uint64_t budget_bytes() const { return budget_bytes_; }
  std::uint64_t over_budget_bytes() const {
    return committed_bytes_ > budget_bytes_ ? committed_bytes_ - budget_bytes_ : 0;
  }
  void trim();  // gives all spares back, and what was prepared
  // Gets memory from the system for the next `ahead_bytes` of slabs (within the budget), one arena
  // page per call. False if all of it is there.
  bool prepare(std::uint64_t ahead_bytes);

  // Slabs. A draining slab hands out nothing and returns when its last extent is freed.
  SlabId slab_of(ArenaOffset offset) const {
    return static_cast<SlabId>(
        slab_of_page_[static_cast<std::size_t>(offset) >> units_per_page_log2_] - 1);
  }
  SlabInfo slab(SlabId s) const;
  std::optional<SlabId> emptiest_slab(SizeClass c) const;  // to a fifteenth; not full, not draining
  void drain(SlabId s);
  void stop_draining(SlabId s);
  template <class F>
  void for_each_slab(SizeClass c, F&& f) const {  // f(SlabId); it may empty the slab it is given
    for (std::uint32_t s = of(c).first_slab; s != kNone;) {
      const std::uint32_t next = slabs_[s].next_in_class;
      f(static_cast<SlabId>(s));
      s = next;
    }
  }
  // f(ArenaOffset), ascending; it may free that extent and others of the slab, but make no slab.
  template <class F>
  void for_each_live(SlabId id, F&& f) const {
    const std::uint32_t s = static_cast<std::uint32_t>(id);
    const std::uint32_t capacity = slabs_[s].capacity;
    for (std::uint32_t word = 0; word * 64 < capacity; ++word) {
      const std::uint32_t bits = capacity - word * 64;
      const std::uint64_t in_word = bits >= 64 ? ~0ull : (1ull << bits) - 1;
      std::uint64_t left = ~bitmap(s)[word] & in_word;
      while (left != 0) {
        const std::uint32_t bit = static_cast<std::uint32_t>(std::countr_zero(left));
        f(offset_of(s, slabs_[s], word * 64 + bit));
        if (slab_of_page_[s] == 0) return;  // f freed the last one and the slab is gone
        left &= ~bitmap(s)[word] & ~((2ull << bit) - 1);
      }
    }
  }

  ArenaStats stats() const;             // O(classes)
  ArenaStats stats(SizeClass c) const;  // O(1)
  // Why the memory last refused a slab, if it ever did.
  const Error* last_error() const { return last_error_ ? &*last_error_ : nullptr; }

  // Recounts everything from the bitmaps; the error says what does not add up.
  Status check() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kFull = 16;  // bucket 0: empty; 1..15: by fullness; 16: full

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
    std::uint32_t heads[kFull + 1];  // slabs by bucket
    std::uint32_t occupied;          // bit b: heads[b] is not empty
    std::uint32_t first_slab;
    std::uint64_t slabs, slabs_made, slabs_returned, draining_slabs;
    std::uint64_t in_use, open_free;  // extents; free ones in slabs that are not draining
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
  std::uint32_t extent_of(std::uint32_t s, ArenaOffset offset) const {
    return (static_cast<std::uint32_t>(offset) - (s << units_per_page_log2_)) /
           classes_[slabs_[s].size_class].extent_units;
  }
  std::size_t tag_index(ArenaOffset offset) const {  // dense from the slab's first unit on
    const std::uint32_t s = static_cast<std::uint32_t>(slab_of(offset));
    return (std::size_t{s} << units_per_page_log2_) + extent_of(s, offset);
  }

  Class make_class(std::size_t bytes) const;
  void link(std::uint32_t s, std::uint32_t bucket);
  void unlink(std::uint32_t s);
  void rebucket(std::uint32_t s) {
    const Slab& slab = slabs_[s];
    const std::uint32_t bucket = slab.in_use == 0 ? 0
                                 : slab.in_use == slab.capacity
                                     ? kFull
                                     : 1 + slab.in_use * 15 / slab.capacity;
    if (bucket == slab.bucket) return;
    unlink(s);
    link(s, bucket);
  }
  bool make_slab(std::uint32_t class_index);
  void return_slab(std::uint32_t s);
  std::uint64_t spare_bytes() const;
  std::optional<std::uint32_t> find_pages(std::uint32_t count);
  void mark_pages(std::uint32_t first, std::uint32_t count, bool used);
  void poison(std::size_t offset, std::size_t bytes);
  void unpoison(std::size_t offset, std::size_t bytes);

  std::unique_ptr<Memory> memory_;
  std::byte* base_;
  std::size_t page_bytes_;
  std::uint32_t units_per_page_log2_, page_count_, words_per_page_;
  bool poison_;
  std::uint64_t budget_bytes_;
  std::vector<Class> classes_;
  LazyArray<Slab> slabs_;                  // by first page
  LazyArray<std::uint32_t> slab_of_page_;  // by page; 0 none, else SlabId + 1
  LazyArray<std::uint8_t> prepared_;       // by page, of those in no slab
  LazyArray<std::uint64_t> free_bits_;     // per slab: capacity bits, set = free
  LazyArray<std::uint32_t> tags_;          // by unit
  std::uint32_t first_free_page_ = 0;      // no free page lies before it
  std::uint32_t prepared_pages_ = 0;
  std::uint64_t committed_bytes_ = 0;
  std::optional<Error> last_error_;
};

}  // namespace quire
