// kv/lazy_array.h - a large zeroed array that costs memory only where it was touched and never
// moves.
//
// Bookkeeping per page, block or entry is sized once for the most there can ever be; the system
// gives real memory to the parts in use. So nothing on a hot path grows, and pointers stay good.
//
//   LazyArray<std::uint32_t> refs(1 << 24);   // 64 MiB of addresses, no memory yet
//   refs[7] = 1;                              // now one page
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace quire {

// Huge pages, where the system gives them, suit large arrays that are read at random: a read of a
// 64 MiB array took a third less time. Touching the first byte of a huge page costs 2 MiB.
enum class LazyPages { small, huge };

namespace lazy {
void* map_zeroed(std::size_t bytes, LazyPages pages);  // aborts when even addresses run out
void unmap(void* at, std::size_t bytes);
}  // namespace lazy

template <class T>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  LazyArray() = default;
  explicit LazyArray(std::size_t size, LazyPages pages = LazyPages::small)
      : data_(size ? static_cast<T*>(lazy::map_zeroed(size * sizeof(T), pages)) : nullptr),
        size_(size) {}
  LazyArray(LazyArray&& o) noexcept { swap(o); }
  LazyArray& operator=(LazyArray&& o) noexcept {
    LazyArray(std::move(o)).swap(*this);
    return *this;
  }
  ~LazyArray() {
    if (data_) lazy::unmap(data_, size_ * sizeof(T));
  }

  std::size_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::size_t i) {
    DCHECK(i < size_);
    return data_[i];
  }
  const T& operator[](std::size_t i) const {
    DCHECK(i < size_);
    return data_[i];
  }

 private:
  void swap(LazyArray& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
  }
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace quire
