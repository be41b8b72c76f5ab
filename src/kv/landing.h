// kv/landing.h - room for a block that comes from below memory.
//
// The room is the landing's alone and stays where it is, so that another thread may write into it.
// When all bytes are there, KvCache::adopt gives the block to a sequence. A landing that ends before
// gives the room back; it must not end while somebody writes.
//
//   std::optional<Landing> room = cache.land(sequence, group);   // none: there is no room
//   tier.read({{identity, segment, room->bytes()}}, done);       // elsewhere
//   LandedBlock block;
//   block[group] = std::move(*room);
//   cache.adopt(sequence, first_block, {&block, 1});
#pragma once

#include <array>
#include <span>
#include <utility>

#include "kv/cache_layout.h"
#include "kv/pool.h"

namespace quire {

class Landing {
 public:
  Landing() = default;
  Landing(BlockRef room, BlockFence fence, std::uint64_t bytes, std::uint64_t& count)
      : room_(std::move(room)), fence_(std::move(fence)), bytes_(bytes), count_(&count) {
    ++*count_;
  }
  Landing(Landing&& o) noexcept { swap(o); }
  Landing& operator=(Landing&& o) noexcept {
    Landing(std::move(o)).swap(*this);
    return *this;
  }
  ~Landing() {
    if (count_) --*count_;
  }

  bool empty() const { return room_.empty(); }
  std::span<std::byte> bytes() const { return {room_.bytes(), bytes_}; }
  ArenaOffset offset() const { return room_.offset(); }
  void count_in(std::uint64_t& count) {
    --*count_;
    ++*(count_ = &count);
  }

 private:
  friend class CacheCore;
  void swap(Landing& o) noexcept {
    std::swap(room_, o.room_);
    std::swap(fence_, o.fence_);
    std::swap(bytes_, o.bytes_);
    std::swap(count_, o.count_);
  }
  BlockRef take() {
    fence_ = {};
    return std::move(room_);
  }

  BlockRef room_;
  BlockFence fence_;
  std::uint64_t bytes_ = 0;
  std::uint64_t* count_ = nullptr;  // of the cache: landings that live
};

using LandedBlock = std::array<Landing, kGroupsMax>;  // by group; empty: not wanted

}  // namespace quire
