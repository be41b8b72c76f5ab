// kv/retain/retain.h - which tokens of a live sequence stay: the table of methods.
//
// A method is an entry of a table: what it must be told about a sequence, when it runs, how it
// splits a budget over heads and layers, and a pure function that scores slots. Scoring goes layer
// by layer, so that only one layer's keys are unpacked at a time. Choosing then sees the scores of
// all lanes (lane = layer * kv_heads + head). Nothing here knows a model, a cache or a clock; the
// caller brings keys and sums of attention. kv/retain/observe.h computes these sums in plain code.
//
//   TRY(RetainMethod method, find_retain_method("ada-snapkv"));
//   for (each layer) {                       // `in` holds what method.needs asks for
//     method.score(method, in, scores_of(layer));
//     if (method.weigh) method.weigh(method, in, weights_of(layer));
//   }
//   KeepSets keep = choose(method, {kv_heads, scores, weights, begin}, budget_slots(n, 0.2));
//   for (std::uint32_t slot : keep.lane(lane)) ...       // ascending
//
// Entries are plain values: copy one to change a parameter. A name may begin with wrappers, which
// change fields of the entry: "ada-" (budgets move between the heads of a layer), "critical-" (half
// of the budget goes by score times what the value adds to the layer's output).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

// What a method must be told; kernels gather this and nothing more. Flags.
enum class Signal : std::uint32_t {
  none = 0,
  keys = 1 << 0,
  values = 1 << 1,
  window_mass = 1 << 2,    // attention of the last RetainMethod::window queries, averaged
  total_mass = 1 << 3,     // attention of all queries, summed (a second pass over the prompt)
  peak_mass = 1 << 4,      // most attention by any query of a pass that reads the context again
  below_counts = 1 << 5,   // of the last `window` queries, how many gave less than average
  query_moments = 1 << 6,  // mean and covariance of queries, turned to future positions
  output_norms = 1 << 7,   // size of what each value adds to the layer's output
  marks = 1 << 8,          // what each token is
};
constexpr Signal operator|(Signal a, Signal b) {
  return static_cast<Signal>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
constexpr bool asks(Signal needs, Signal one) {
  return (static_cast<std::uint32_t>(needs) & static_cast<std::uint32_t>(one)) != 0;
}

// When a method acts by default. Every method can also be run again each N tokens.
enum class RetainWhen : std::uint8_t { prompt_end, block_seal, both };

// How many slots each lane may keep, given the average per lane.
enum class BudgetRule : std::uint8_t {
  uniform,    // the same for every lane
  pyramid,    // falls linearly from the first layer to the last
  adaptive,   // the best entries of a layer's heads together, each head sure of a share (Ada-KV)
  global,     // the best entries of all lanes together
  composite,  // the same for the heads of a layer, layers compete by rank-wise mean (KVCompose)
  split,      // some lanes keep everything, the others sinks and recent tokens (DuoAttention)
  profile,    // per lane the cheapest of nested sets that recovers enough attention (FastGen)
};

// What lanes hold afterwards: the same slots in a whole layer, the same count in each head of a
// layer, or counts that differ (then the cache needs lane pages).
enum class RetainPages : std::uint8_t { same_slots, same_count, ragged };

// What a compacted cache depends on: the prefix alone (it can be shared as a snapshot at this cut),
// or also the question or the generated tokens (it is private to the sequence).
enum class RetainClass : std::uint8_t { snapshot, question };

enum TokenMark : std::uint8_t { kMarkSpecial = 1, kMarkPunctuation = 2, kMarkAnswer = 4 };

// One layer of one sequence. Slots are those now present, oldest first. Spans a method did not ask
// for may be empty. Ragged lanes are scored one at a time, as layers with one head.
struct RetainInput {
  std::uint32_t layer = 0;     // of those that retain
  std::uint32_t kv_heads = 1;  // heads with keys of their own
  std::uint32_t group = 1;     // query heads per KV head
  std::uint32_t key_dim = 0, value_dim = 0;
  std::uint32_t slots = 0;
  std::uint64_t seed = 0;                    // for methods that draw
  std::span<const float> keys = {};          // [kv_head][slot][key_dim], rotated to their positions
  std::span<const float> values = {};        // [kv_head][slot][value_dim]
  std::span<const float> window_mass = {};   // [query head][slot]
  std::span<const float> total_mass = {};    // [query head][slot]
  std::span<const float> peak_mass = {};     // [query head][slot]
  std::span<const float> below_counts = {};  // [query head][slot]
  std::span<const float> query_mean = {};    // [query head][key_dim]
  std::span<const float> query_covariance =
      {};                                    // [query head][key_dim][key_dim], or empty: left out
  std::span<const float> output_norms = {};  // [kv_head][slot]
  std::span<const float> gates = {};         // [kv_head], how much a head retrieves; or empty
  std::span<const std::uint8_t> marks = {};  // [slot], TokenMark flags

  std::uint32_t query_heads() const { return kv_heads * group; }
};

struct RetainMethod {
  using Score = void (*)(const RetainMethod&, const RetainInput&, std::span<float>);

  std::string_view name = {};
  std::string_view source = {};   // where it was published
  std::string_view summary = {};  // one line, for people
  RetainWhen when = RetainWhen::prompt_end;
  Signal needs = Signal::none;
  BudgetRule rule = BudgetRule::uniform;
  RetainPages pages = RetainPages::same_count;
  RetainClass shares = RetainClass::snapshot;
  Score score = nullptr;  // [kv_head][slot]: high stays
  Score weigh = nullptr;  // a second number per slot, where the rule or the wrapper wants one

  // Always kept, within the budget: the first tokens, then the last ones, then a share of the
  // budget as last ones.
  std::uint32_t sinks = 0, recent = 0;
  double recent_share = 0;

  std::uint32_t window = 0;   // queries observed
  std::uint32_t kernel = 1;   // slots averaged into one score
  double floor_share = 0;     // adaptive: of the average budget, sure for each head
  double pyramid_slope = 20;  // pyramid: the last layer's share is one over this
  double first_stage = 1;     // critical: of a lane's budget, chosen by score alone
  double epsilon = 0;         // added to a score before it is multiplied
  bool by_value = true;       // expected: scores are multiplied by the value's norm
  double threshold = 1;       // profile: of a head's attention, to be recovered
};

// All methods, without wrappers; find_retain_method also understands wrapped names.
std::span<const RetainMethod* const> retain_methods();
Result<RetainMethod> find_retain_method(std::string_view name);

// What choose() sees: for every lane its slots' scores (and weights, if the method weighs).
struct LaneScores {
  std::uint32_t kv_heads = 1;
  std::span<const float> scores;         // lane after lane
  std::span<const float> weights;        // lane after lane, or empty
  std::span<const std::uint32_t> begin;  // [lanes + 1], where a lane's slots begin

  std::uint32_t lanes() const { return static_cast<std::uint32_t>(begin.size() - 1); }
  std::uint32_t slots(std::uint32_t lane) const { return begin[lane + 1] - begin[lane]; }
  std::span<const float> lane(std::uint32_t i) const { return scores.subspan(begin[i], slots(i)); }
};

struct KeepSets {
  std::vector<std::uint32_t> slots;  // ascending within a lane
  std::vector<std::uint32_t> begin;  // [lanes + 1]
  bool fell_back = false;            // the rule did not fit this budget; uniform was used instead

  std::span<const std::uint32_t> lane(std::uint32_t i) const {
    return std::span(slots).subspan(begin[i], begin[i + 1] - begin[i]);
  }
};

// The slots to keep, `budget` per lane on average and never more in sum. Ties go to the lower slot,
// then to the lower lane; a score that is not a number is the lowest. Budgets that cover every lane
// keep everything.
KeepSets choose(const RetainMethod& method, const LaneScores& lanes, std::uint32_t budget);

// The share of n slots, rounded down but at least one; what a ratio means everywhere.
std::uint32_t budget_slots(std::uint32_t n, double share);

}  // namespace quire
