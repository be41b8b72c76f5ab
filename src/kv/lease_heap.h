// kv/lease_heap.h - blocks that a lease protects, the one that expires first on top.
//
// No evictor sees these blocks until their lease has expired. Only when a running sequence would
// fail for lack of memory do they leave earlier, in order of expiry. An indexed binary heap over
// block numbers, sized once.
//
//   heap.add(block, expires);
//   while (!heap.empty() && heap.next_expiry() <= now) release(heap.pop());
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/clock.h"
#include "kv/lazy_array.h"

namespace quire {

class LeaseHeap {
 public:
  explicit LeaseHeap(std::uint32_t blocks_max) : heap_(blocks_max), place_(blocks_max) {}

  bool empty() const { return size_ == 0; }
  std::uint32_t size() const { return size_; }
  bool contains(std::uint32_t block) const { return place_[block] != 0; }
  Nanoseconds next_expiry() const { return heap_[0].expires; }
  std::uint32_t top() const { return heap_[0].block; }

  void add(std::uint32_t block, Nanoseconds expires) {
    DCHECK(!contains(block));
    put(size_++, {expires, block});
    rise(size_ - 1);
  }
  void remove(std::uint32_t block) {
    const std::uint32_t hole = place_[block] - 1;
    DCHECK(contains(block));
    place_[block] = 0;
    if (hole == --size_) return;
    put(hole, heap_[size_]);
    rise(hole);
    sink(hole);
  }
  std::uint32_t pop() {
    const std::uint32_t block = top();
    remove(block);
    return block;
  }

 private:
  struct Entry {
    Nanoseconds expires;
    std::uint32_t block;
    bool before(const Entry& o) const {
      return expires != o.expires ? expires < o.expires : block < o.block;
    }
  };

  void put(std::uint32_t at, const Entry& e) {
    heap_[at] = e;
    place_[e.block] = at + 1;
  }
  void exchange(std::uint32_t a, std::uint32_t b) {
    const Entry e = heap_[a];
    put(a, heap_[b]);
    put(b, e);
  }
  void rise(std::uint32_t at) {
    for (; at > 0 && heap_[at].before(heap_[(at - 1) / 2]); at = (at - 1) / 2)
      exchange(at, (at - 1) / 2);
  }
  void sink(std::uint32_t at) {
    for (;;) {
      std::uint32_t first = at;
      for (std::uint32_t child : {2 * at + 1, 2 * at + 2})
        if (child < size_ && heap_[child].before(heap_[first])) first = child;
      if (first == at) return;
      exchange(at, first);
      at = first;
    }
  }

  LazyArray<Entry> heap_;
  LazyArray<std::uint32_t> place_;  // by block: where in heap_, plus 1
  std::uint32_t size_ = 0;
};

}  // namespace quire
