#include "kv/evict/expiry.h"

#include <bit>

namespace quire {

Expiry::Expiry(std::uint32_t ids_max)
    : lists_(ids_max, kDue + 1), ticks_(ids_max), where_(ids_max) {}

void Expiry::add(std::uint32_t id, Nanoseconds expires) {
  CHECK(expires > 0);
  ticks_[id] = ((static_cast<std::uint64_t>(expires) - 1) >> kTickShift) + 1;  // never early
  place(id);
  ++size_;
}

void Expiry::remove(std::uint32_t id) {
  lists_.erase(id);
  const std::uint32_t list = where_[id];
  if (list != kDue && lists_.empty(list)) occupied_[list / kSlots] &= ~(1ull << (list % kSlots));
  --size_;
}

// The level is the highest digit (base 64) in which the id's tick differs from the present one.
void Expiry::place(std::uint32_t id) {
  const std::uint64_t tick = ticks_[id];
  std::uint32_t list = kDue;
  if (tick > tick_) {
    const std::uint32_t level = (static_cast<std::uint32_t>(std::bit_width(tick ^ tick_)) - 1) / 6;
    const std::uint32_t slot = (tick >> (6 * level)) % kSlots;
    occupied_[level] |= 1ull << slot;
    list = level * kSlots + slot;
  }
  where_[id] = static_cast<std::uint16_t>(list);
  lists_.push_back(list, id);
}

// Goes from one occupied slot to the next. All slots of a level lie before those of the next level.
void Expiry::advance(std::uint64_t tick) {
  while (tick_ < tick) {
    std::uint32_t level = 0;
    while (level < kLevels && occupied_[level] == 0) ++level;
    if (level == kLevels) break;
    const auto slot = static_cast<std::uint64_t>(std::countr_zero(occupied_[level]));
    const std::uint64_t above = tick_ >> (6 * (level + 1)) << (6 * (level + 1));
    const std::uint64_t start = above | slot << (6 * level);
    if (start > tick) break;
    tick_ = start;
    occupied_[level] &= occupied_[level] - 1;
    const std::uint32_t list = level * kSlots + static_cast<std::uint32_t>(slot);
    while (!lists_.empty(list)) {
      const std::uint32_t id = lists_.front(list);
      lists_.erase(id);
      place(id);
    }
  }
  if (tick > tick_) tick_ = tick;
}

std::optional<std::uint32_t> Expiry::due(Nanoseconds now) {
  if (size_ == 0) {
    tick_ = std::max(tick_, static_cast<std::uint64_t>(now) >> kTickShift);
    return std::nullopt;
  }
  advance(static_cast<std::uint64_t>(now) >> kTickShift);
  if (lists_.empty(kDue)) return std::nullopt;
  return lists_.front(kDue);
}

}  // namespace quire
