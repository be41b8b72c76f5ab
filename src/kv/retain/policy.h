// kv/retain/policy.h - retention as a request asks for it: a method, an amount, and options.
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

// The policy in the words of the API, not checked yet.
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
  double share = 0;          // of the prompt's tokens; 0: `tokens` counts
  std::uint32_t tokens = 0;  // a number of tokens
  const Merger* merger = nullptr;
  std::uint32_t every = 0;  // tokens between runs while decoding, in whole blocks; 0: none
  // It acts when this many tokens of the prompt have been read and sees no others; 0: the whole
  // prompt.
  std::uint32_t cut = 0;

  // True if what remains at the cut depends only on the tokens before it, so that requests may
  // share it.
  bool snapshots() const { return cut > 0 && method.shares == RetainClass::snapshot; }

  // Slots that each lane keeps on average, for a prompt of this many tokens and what follows it.
  std::uint32_t budget(std::uint32_t prompt) const;
  Signal needs() const;
  // Which queries of the prompt it must see, so that a cached prefix is not served beyond them.
  static constexpr std::uint32_t kAllQueries = 0xffffffffu;
  std::uint32_t prompt_queries() const;
  // True if it keeps first and last tokens only: positions can then start over, and the text may be
  // endless.
  bool endless() const;
  std::string text() const;  // as parse_retain_policy reads it

  bool operator==(const RetainPolicy& other) const { return text() == other.text(); }
};

Result<RetainPolicy> make_retain_policy(const RetainAsk& ask);
Result<RetainPolicy> parse_retain_policy(std::string_view text);
// The policy, as text, of a window: the last `size` tokens and the first `sink` ones.
std::string window_policy(std::uint32_t size, std::uint32_t sink);

// Groups whose lanes are compacted: full attention, and not the recent rows of a lossy group.
bool retains(const LayerGroup& group);
// What the rules of retention and selection ask about a geometry: how many such groups it has,
// whether pages of one cannot be read lane by lane, and whether rows are kept beside a lossy
// format.
std::size_t retained_groups(const Geometry& geometry);
bool has_no_lanes(const Geometry& geometry);
bool keeps_rows(const Geometry& geometry);

}  // namespace quire
