// engine/combine.h - which policies of a request go together: one table, which refuses, explains and
// is printed by `quire kv methods`. engine/compose_test.cc walks it.
//
//   TRY_STATUS(check_combination({.geometry = &geometry, .retain = &policy, .beams = 4}));
//
// Adding a policy: its name in Part, what it does not go with in combine.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/geometry.h"
#include "kv/retain/policy.h"
#include "kv/select/policy.h"

namespace quire {

// What a request asks for at once.
struct Combination {
  const Geometry* geometry = nullptr;    // as its blocks are stored
  const RetainPolicy* retain = nullptr;  // kv.budget
  const SelectPolicy* select = nullptr;  // kv.select, of answers or of prompts
  bool blends = false, converts = false;
  std::uint32_t choices = 1, beams = 0;
  bool scores = false;                  // prompt_logprobs
  bool pools = false;                   // an embedding is wanted
  bool spills = false;                  // kv.resident: it is larger than what it may hold
  bool session = false, stored = true;  // kv.session; its blocks may go to all tiers there are
  bool page_work = true, cold = true;   // what the executor can do: ExecutorTraits
  bool tiers = true;                    // there are some
  std::uint32_t context = 0xffffffffu;  // positions that the model knows
};

// A part of a request that has rules.
enum class Part : std::uint8_t { budget, select, approximate, convert, draft, pooling, resident };

struct CombineRule {
  Part part;
  std::string_view with;  // what it is combined with
  std::string_view says;  // how, or why not
  // Null: always legal. Else whether this use is refused.
  bool (*refuses)(const Combination&) = nullptr;
};

std::span<const CombineRule> combine_rules();
bool asks_for(const Combination& c, Part part);
std::string_view field_of(Part part);  // of the request: "kv.budget"

// The first rule that refuses: which part, and why. Nothing: all of it goes together.
struct Refusal {
  Part part;
  std::string message;
};
std::optional<Refusal> refusal(const Combination& c);
Status check_combination(const Combination& c);  // refusal() as an error
// Whether its answers may be drafted. Nobody asks for drafts, so nothing is refused: where a rule of
// theirs says no, there are none.
bool may_draft(const Combination& c);

}  // namespace quire
