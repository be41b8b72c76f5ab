// lab/board/way.h - parses the method string of a leaderboard row: what the row does to a cache.
//
// Parts are joined by '+', in any order: a retention method, a format, a merger; or how the context
// is read (quest, xattention, vertical-slash) or put together (cacheblend, key-rotation). For the
// latter two kinds the row's share says how much is read, or how much is not computed again.
//
//   TRY(Way way, parse_way("snapkv+hadamard-int4"));
#pragma once

#include <optional>
#include <string_view>

#include "format/format.h"
#include "kv/retain/merge.h"
#include "kv/retain/retain.h"

namespace quire {

struct Way {
  bool no_context = false;  // "none"
  std::optional<RetainMethod> method = {};
  const Merger* merger = nullptr;
  const Format* format = nullptr;  // null: f16
  std::string_view selects = {};   // by this method; static
  bool blends = false;             // half of the context was read elsewhere
};

Result<Way> parse_way(std::string_view text);

}  // namespace quire
