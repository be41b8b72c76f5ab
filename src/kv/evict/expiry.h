// kv/evict/expiry.h - ids by the time their lease runs out: a wheel of wheels.
//
// Eight levels of 64 slots; a slot of level L spans 64^L ticks of about 1 ms. Adding and removing
// are O(1); as time passes an id falls at most once through each level. Used by every evictor; ids
// without a lease are never added.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "kv/evict/list.h"

namespace quire {

class Expiry {
 public:
  explicit Expiry(std::uint32_t ids_max);

  void add(std::uint32_t id, Nanoseconds expires);
  void remove(std::uint32_t id);
  // An id whose lease has expired, or nothing. The id stays until it is removed. `now` never goes
  // back.
  std::optional<std::uint32_t> due(Nanoseconds now);
  std::uint64_t size() const { return size_; }

 private:
  static constexpr std::uint32_t kLevels = 8, kSlots = 64, kDue = kLevels * kSlots;
  static constexpr int kTickShift = 20;  // 1,048,576 ns

  void place(std::uint32_t id);
  void advance(std::uint64_t tick);

  LinkedIds<PlainLink> lists_;            // kLevels * kSlots slots, then the due
  LazyArray<std::uint64_t> ticks_;        // by id
  LazyArray<std::uint16_t> where_;        // by id: its list
  std::uint64_t occupied_[kLevels] = {};  // bit per slot that may hold something
  std::uint64_t tick_ = 0, size_ = 0;
};

}  // namespace quire
