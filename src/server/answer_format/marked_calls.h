// server/answer_format/marked_calls.h - reads calls whose arguments are JSON, behind a mark: an object or a
// list of objects with name and arguments, or a name and its arguments.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_format/block_calls.h"
#include "server/answer_format/call_reader.h"
#include "server/answer_format/json_call.h"

namespace quire {

// What stands before the arguments of a call that is no object.
struct CallHead {
  enum class Found : std::uint8_t { more, yes, no };
  Found found = Found::more;
  std::size_t bytes = 0;  // the arguments' object begins here
  std::string name = {};
};
inline constexpr std::size_t kHeadBytesMax = 256;

struct CallSyntax {
  std::span<const std::string_view> begin = {};  // marks before calls
  std::span<const std::string_view> close = {};  // marks that may follow a call
  bool bare = false;  // an object without a mark is a call where nothing else was said
  // Of the first kHeadBytesMax bytes behind a mark; null: calls are objects, alone or in a list.
  CallHead (*head)(std::string_view text) = nullptr;
  // What stands behind a mark and is no object: the rest of the answer, read at its end.
  bool (*rest)(std::string_view text, std::vector<ReadCall>& calls) = nullptr;
};

std::unique_ptr<CallReader> read_marked_calls(const CallSyntax& syntax);

}  // namespace quire
