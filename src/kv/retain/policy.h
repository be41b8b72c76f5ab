// kv/retain/policy.h - retention as a request asks for it: a method, how much, and what goes with it.
//
// The server's `kv.budget` and `kv.window`, the command line's --kv-budget and --window, the C API
// and the leaderboard all end in a RetainPolicy. As text it reads METHOD:AMOUNT, where AMOUNT is a
// share of the prompt ("20%") or a number of tokens, and options may follow:
//
//   TRY(RetainPolicy p, parse_retain_policy("snapkv:20%"));
//   TRY(RetainPolicy q, parse_retain_policy("h2o:1024,merge=value,every=128"));
//
// engine/combine.h says what it may be combined with.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/geometry.h"
#include "kv/retain/merge.h"
#include "kv/retain/retain.h"

namespace quire {

// As asked for, in the words of the API; nothing is checked yet.
struct RetainAsk {
  std::string policy = {};                   // a method, or another server's name for one
  std::optional<std::uint32_t> tokens = {};  // one of these two
  std::optional<double> ratio = {};          // of the prompt's tokens
  std::optional<std::uint32_t> sink = {}, recent = {};  // instead of the method's own
  std::optional<std::uint32_t> every = {};  // tokens between runs while decoding; 0: none
  std::optional<std::uint32_t> cut = {};  // tokens of the prompt it is about; the others come after
  bool per_head = false;                  // the same as ada- before the name
  std::string merge = {};
};

struct RetainPolicy {
  std::string name = {};     // of the method, wrappers included
  RetainMethod method = {};  // with its parameters as asked
  double share = 0;          // of the prompt's tokens; or, where it is 0,
  std::uint32_t tokens = 0;  // so many
  const Merger* merger = nullptr;
  std::uint32_t every = 0;  // tokens between runs while decoding, in whole blocks; 0: none
  // It acts when so many tokens of the prompt have been read, and looks at no others; 0: all of it.
  std::uint32_t cut = 0;

  // What it leaves at its cut depends on the tokens before it alone: requests may share it.
  bool snapshots() const { return cut > 0 && method.shares == RetainClass::snapshot; }

  // Slots that each lane keeps on average, of a prompt of so many tokens and what follows it.
  std::uint32_t budget(std::uint32_t prompt) const;
  Signal needs() const;
  // Which queries of the prompt it must see, so that a cached prefix is not served beyond them.
  static constexpr std::uint32_t kAllQueries = 0xffffffffu;
  std::uint32_t prompt_queries() const;
  // Keeps first and last tokens only: positions can start over, and the text never has to end.
  bool endless() const;
  std::string text() const;  // as parse_retain_policy reads it

  bool operator==(const RetainPolicy& other) const { return text() == other.text(); }
};

Result<RetainPolicy> make_retain_policy(const RetainAsk& ask);
Result<RetainPolicy> parse_retain_policy(std::string_view text);
// The text of a window of so many last tokens behind so many first ones.
std::string window_policy(std::uint32_t size, std::uint32_t sink);

// Groups whose lanes are compacted: attention over everything, and not the rows beside a lossy one.
bool retains(const LayerGroup& group);
// Of a geometry, what rules of retaining and of selecting ask for: how many such groups it has,
// whether pages of one are no lanes that can be read by themselves, and whether rows are kept beside
// a lossy format.
std::size_t retained_groups(const Geometry& geometry);
bool has_no_lanes(const Geometry& geometry);
bool keeps_rows(const Geometry& geometry);

}  // namespace quire
