// kernels/kv_view.h - all that a kernel may know about the cache; built once per step by kv/, read
// by model/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace quire {

enum class ArenaOffset : std::uint32_t {};  // in units of 256 bytes from the arena's first byte

inline constexpr std::size_t kArenaUnit = 256;
inline constexpr ArenaOffset kNoBlock{0xffffffffu};

inline std::byte* arena_at(std::byte* arena, ArenaOffset offset) {
  return arena + static_cast<std::size_t>(offset) * kArenaUnit;
}

// What one lane (layer of a group, KV head) kept of a sequence's first tokens. Slot i of the lane
// is slot i % P of the page that begins `offset` bytes after pages[i / P]. That page belongs to
// this lane alone, or, when a query chose which pages to read, it is the lane's part of a block.
struct KvLane {
  const ArenaOffset* pages;
  std::uint32_t slots;
  std::uint32_t offset = 0;
};

// One sequence of a step in one layer group. Slots are absolute token positions in the sequence:
// slot s lies in blocks[s / P]. Row i of the sequence sits at slot past + i: its K/V are written
// there, and it attends to slots (past + i - window, past + i], or [0, past + i] without a window.
// Entries left of every row's window may be stale. A lossy group has blocks up to the last one that
// is full after the step. The rows themselves go to a recent group; there a block that the step
// fills whole may be kNoBlock, and its rows are then scratch of the step.
//
// A compacted sequence has lanes. Of the tokens before ragged_until (a multiple of P) a row attends
// to all that its lane kept, then to the table from ragged_until on; earlier entries of the table
// may be stale. Such a group has no window.
struct KvSequenceView {
  const ArenaOffset* blocks;
  std::uint32_t first_row;  // into the step's row matrices
  std::uint32_t row_count;
  std::uint32_t past;
  const KvLane* lanes = nullptr;  // by lane of the group (layer index * kv_heads + head), or none
  std::uint32_t ragged_until = 0;
  std::uint32_t lane_slots_max = 0;  // of any lane
};

// A layer group in one step.
struct KvView {
  std::byte* arena;
  const KvSequenceView* sequences;
  std::uint32_t sequence_count;
  std::uint32_t tokens_per_block;
  std::uint32_t window;  // 0 = all
};
static_assert(std::is_trivially_copyable_v<KvView>);  // crosses to a device by value

}  // namespace quire
