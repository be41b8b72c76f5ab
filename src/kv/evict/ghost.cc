#include "kv/evict/ghost.h"

#include <algorithm>
#include <bit>

#include "base/random.h"

namespace quire {
namespace {
// A larger cache would not have kept what expired or was cleared.
bool for_lack_of_room(Reason r) {
  return r == Reason::evicted_capacity || r == Reason::evicted_slab ||
         r == Reason::evicted_shrink || r == Reason::evicted_orphan || r == Reason::evicted_quota;
}
}  // namespace

GhostTable::GhostTable(std::uint32_t entries_max)
    : ring_(std::max(entries_max, 1u)),
      sums_(std::size_t{std::max(entries_max, 1u)} + 1),
      slots_(std::bit_ceil(std::size_t{2} * std::max(entries_max, 1u))),
      capacity_(std::max(entries_max, 1u)),
      mask_(static_cast<std::uint32_t>(slots_.size() - 1)) {}

std::uint32_t GhostTable::find_slot(std::uint64_t key) const {
  auto slot = static_cast<std::uint32_t>(mix64(key)) & mask_;
  while (slots_[slot] != 0 && ring_[slots_[slot] - 1].key != key) slot = (slot + 1) & mask_;
  return slot;
}

void GhostTable::weigh(std::uint32_t place, std::uint64_t bytes) {
  for (std::uint32_t i = place + 1; i <= capacity_; i += i & -i) sums_[i] += bytes;
}

std::uint64_t GhostTable::weight_before(std::uint32_t place) const {
  std::uint64_t sum = 0;
  for (std::uint32_t i = place; i > 0; i -= i & -i) sum += sums_[i];
  return sum;
}

void GhostTable::erase_slot(std::uint32_t slot) {
  const Ghost& ghost = ring_[slots_[slot] - 1];
  if (for_lack_of_room(ghost.reason)) {
    weigh(slots_[slot] - 1, -ghost.bytes);
    away_bytes_ -= ghost.bytes;
  }
  --size_;
  std::uint32_t hole = slot;
  for (std::uint32_t s = (slot + 1) & mask_; slots_[s] != 0; s = (s + 1) & mask_) {
    const auto home = static_cast<std::uint32_t>(mix64(ring_[slots_[s] - 1].key)) & mask_;
    if (((s - home) & mask_) < ((s - hole) & mask_)) continue;  // it may not go before its home
    slots_[hole] = slots_[s];
    hole = s;
  }
  slots_[hole] = 0;
}

void GhostTable::add(std::uint64_t key, std::uint64_t bytes, Reason reason, Nanoseconds now) {
  forget(key);
  // The place may hold the oldest ghost; if it is still the one its key leads to, it goes.
  if (const std::uint32_t old = find_slot(ring_[next_].key); slots_[old] == next_ + 1)
    erase_slot(old);
  ring_[next_] = {key, bytes, now, 0, reason};
  slots_[find_slot(key)] = next_ + 1;
  ++size_;
  if (for_lack_of_room(reason)) {
    weigh(next_, bytes);
    away_bytes_ += bytes;
    stats_.evicted_bytes += bytes;
    ++stats_.evicted_entries;
  }
  next_ = next_ + 1 == capacity_ ? 0 : next_ + 1;
}

std::optional<Ghost> GhostTable::find(std::uint64_t key) const {
  const std::uint32_t slot = find_slot(key);
  if (slots_[slot] == 0) return std::nullopt;
  const std::uint32_t place = slots_[slot] - 1;
  Ghost ghost = ring_[place];
  // Newer ones lie from its place up to next_, perhaps around the end.
  ghost.distance = weight_before(next_) - weight_before(place) + (place < next_ ? 0 : away_bytes_);
  return ghost;
}

std::optional<Ghost> GhostTable::miss(std::uint64_t key, std::uint64_t weight,
                                      std::uint64_t cache_bytes) {
  stats_.lookups += weight;
  const std::optional<Ghost> ghost = find(key);
  if (!ghost) return ghost;
  stats_.found += weight;
  forget(key);
  if (!for_lack_of_room(ghost->reason)) return ghost;
  const std::uint64_t distance = ghost->distance;
  const auto bucket = static_cast<std::size_t>(std::bit_width(distance >> 20));
  stats_.by_distance[std::min(bucket, std::size(stats_.by_distance) - 1)] += weight;
  if (distance <= cache_bytes) stats_.would_hit_2x += weight;
  if (distance <= 3 * cache_bytes) stats_.would_hit_4x += weight;
  if (distance <= 7 * cache_bytes) stats_.would_hit_8x += weight;
  return ghost;
}

void GhostTable::forget(std::uint64_t key) {
  const std::uint32_t slot = find_slot(key);
  if (slots_[slot] != 0) erase_slot(slot);
}

}  // namespace quire
