// server/answer_format/block_calls.h - reads calls that stand between two marks in a syntax of their own. A
// block is read when it is whole, because its arguments become JSON only then.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/answer_format/call_reader.h"

namespace quire {

struct ReadCall {
  std::string name;
  Json arguments = Json::object();
};

// Of one object: looking a key up walks all of them.
inline constexpr std::size_t kArgumentsMax = 4096;

struct BlockMarks {
  std::string_view open, close;
};

struct BlockSyntax {
  std::span<const BlockMarks> marks;
  bool bare_list = false;  // an answer that begins with [ is a block
  // False: it is no call, but text.
  bool (*parse)(std::string_view block, const Json& tools, std::vector<ReadCall>& calls);
};

// `tools`: those of the request, which say what types arguments have.
std::unique_ptr<CallReader> read_block_calls(const BlockSyntax& syntax, const Json& tools);

}  // namespace quire
