// engine/convert.h - blocks of exact rows encoded into another sequence's blocks, instead of being
// computed again (kv.convert, and benchmarks that need a long context in many formats).
//
//   TRY_STATUS(convert_blocks(runtime, exact, lossy, 1024));   // lossy.length() is 1024 now
//
// Converted blocks differ from those that the forward pass would have sealed, because their rows
// were computed from exact keys and values. The sequence's key chain must say so
// (ChangeKind::converted).
#pragma once

#include <cstdint>

#include "engine/runtime.h"

namespace quire {

// Extends `to` to `tokens`, a multiple of the block size, by encoding the blocks that `from` holds.
// Both sequences know these tokens. `from` is stored in the row type of `to`'s formats. If room
// runs out, the blocks converted so far stay, and an error is returned.
Status convert_blocks(Runtime& runtime, const Sequence& from, Sequence& to, std::uint32_t tokens);

}  // namespace quire
