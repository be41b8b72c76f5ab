// kv/select/policy.h - selection as a request asks for it: which of the stored tokens a query
// reads. Nothing is freed. kernels/select.h chooses the pages.
//
// The server's `kv.select`, the command line's --kv-select, the C API and the leaderboard all end in a
// SelectPolicy. As text it reads METHOD:AMOUNT:
//
//   TRY(SelectPolicy p, parse_select_policy("quest:512"));          // tokens, or a share: quest:20%
//   TRY(SelectPolicy q, parse_select_policy("xattention:0.9"));     // share of attention
//   TRY(SelectPolicy r, parse_select_policy("vertical-slash:256+512"));   // columns + diagonals
//
// quest acts while answers are decoded; prompts, and so shared blocks, do not change. The others
// act on prompts; the stored blocks are then approximations, so these policies are part of the
// layout (StoragePolicy::prefill).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/geometry.h"

namespace quire {

// The policy in the words of the API, not checked yet.
struct SelectAsk {
  std::string policy = {};
  std::optional<std::uint32_t> tokens = {}, columns = {}, diagonals = {};
  std::optional<double> ratio = {}, threshold = {};
};

struct SelectMethod {
  std::string_view name, source, summary, when;  // "prompt" or "decode"
};
std::span<const SelectMethod> select_methods();

struct SelectPolicy {
  std::string name = {};
  double share = 0;            // quest: of the prompt's tokens; 0: `tokens` counts
  std::uint32_t tokens = 0;    // quest: a number of tokens
  SparsePrefill prefill = {};  // the others

  bool answers() const { return prefill.way == SparsePrefill::Way::none; }
  // Pages that a row of an answer reads in each lane, besides its own.
  std::uint32_t pages(std::uint32_t prompt, std::uint32_t tokens_per_block) const;
  std::string text() const;  // as parse_select_policy reads it
};

Result<SelectPolicy> make_select_policy(const SelectAsk& ask);
Result<SelectPolicy> parse_select_policy(std::string_view text);
SelectPolicy select_policy(const SparsePrefill& prefill);  // that a layout has

}  // namespace quire
