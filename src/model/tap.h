// model/tap.h - records queries and last states of a sequence during forward passes. Retention methods
// use queries to decide which tokens stay; embeddings are made of states. Only what was asked for is
// recorded.
//
// A program owns a Tap and hands it to every step (StepPlan::taps). The tap collects, in the layers
// of one group, the rotated queries of some rows, or sums over queries before rotation. Between
// steps PageWork::add_mass turns queries into the attention that each slot received:
//
//   Tap tap(model.config(), geometry, group);
//   tap.watch(n - 64, 64);                          // the prompt's last rows, whatever the chunks
//   ... forward() ...
//   model.add_mass(geometry, sequence, tap, {.rows = 64, .weight = 1.0f / 64}, out);   // SnapKV
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/geometry.h"
#include "kernels/kv_view.h"
#include "kernels/mass.h"
#include "model/config.h"

namespace quire {

class Tap {
 public:
  Tap(const ModelConfig& config, const Geometry& geometry, std::uint32_t group);

  std::uint32_t group() const { return group_; }
  std::uint32_t layers() const { return layers_; }  // of the group
  std::uint32_t query_heads() const { return query_heads_; }
  std::uint32_t head_dim() const { return head_dim_; }

  // From now on queries of the tokens [first, first + count) are kept.
  void watch(std::uint32_t first, std::uint32_t count);
  // Forgets queries of tokens before `first`, and watches as many tokens after the others.
  void advance(std::uint32_t first);
  std::uint32_t first() const { return first_; }
  std::uint32_t count() const { return count_; }
  // [query_heads][head_dim], rotated to its position; layer counts within the group.
  const float* query(std::uint32_t layer, std::uint32_t token) const;

  // A row's queries, if its token is watched: [query_heads][head_dim].
  void put(std::uint32_t layer, std::uint32_t token, const float* queries);

  // Queries of the tokens [first, end) are added up, before rotation, by layer and query head.
  void sum_moments(std::uint32_t first, std::uint32_t end);
  // Adds queries of one head before rotation, [count][head_dim], of the tokens from `token` on.
  // Tokens that are not asked for are left out.
  void add_moments(const MassKernels& kernels, std::uint32_t layer, std::uint32_t head,
                   std::uint32_t token, std::uint32_t count, const float* rows);
  // The next steps keep the states of the tokens [first, first + count) after the output norm, instead
  // of those kept before.
  void watch_states(std::uint32_t first, std::uint32_t count, std::uint32_t width);
  // Where a token's state is or goes, [width]; null: it is not watched.
  float* state(std::uint32_t token) {
    return token < states_first_ || token - states_first_ >= states_count_
               ? nullptr
               : states_.data() + std::size_t{token - states_first_} * states_width_;
  }
  bool wants_states() const { return states_count_ > 0; }

  std::uint64_t moment_count() const;                                         // tokens added
  std::span<const double> sums(std::uint32_t layer, std::uint32_t head);      // [head_dim]
  std::span<const double> products(std::uint32_t layer, std::uint32_t head);  // [head_dim]^2

 private:
  friend class Pass;
  // Runs of kRun tokens, counted from token 0, are summed in f32, and the runs in double. So sums
  // do not depend on the chunks, and they cost little.
  static constexpr std::uint32_t kRun = 64;
  struct Moments {
    std::vector<float> run_sums, run_products;
    std::vector<double> sums, products;
    std::uint64_t count = 0;
  };
  Moments& moments(std::uint32_t layer, std::uint32_t head) {
    return moments_[std::size_t{layer} * query_heads_ + head];
  }
  static void close_run(Moments& m);

  std::uint32_t group_, layers_, query_heads_, head_dim_;
  std::uint32_t first_ = 0, count_ = 0;
  std::uint32_t moments_first_ = 0, moments_end_ = 0;
  std::uint32_t states_first_ = 0, states_count_ = 0, states_width_ = 0;
  std::vector<float> states_;   // [states_count][states_width]
  std::vector<float> queries_;  // [layer][count][query_heads * head_dim]
  std::vector<Moments> moments_;
};

// A sequence between steps, as the cache has it: views of all groups whose `past` is its length.
struct TapSequence {
  std::byte* arena;
  std::span<const KvSequenceView> groups;
};

// Which of a tap's queries are used, and which slots they see. A lane's slots are those it kept,
// then those of later tokens. By default a query sees all slots up to its own. With `repeat` it
// reads a context again: it sees the first `sinks` tokens, [begin, end), and the tokens from `own`
// up to itself (KVzip; not for compacted sequences).
struct MassAsk {
  MassRule rule = MassRule::sum;
  float weight = 1;
  std::uint32_t first = 0xffffffffu;  // token; by default the tap's first
  std::uint32_t rows = 0;
  bool repeat = false;
  std::uint32_t sinks = 0, begin = 0, end = 0, own = 0;
};

}  // namespace quire
