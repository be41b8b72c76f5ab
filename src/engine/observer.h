// engine/observer.h - the signals that retention methods need about one sequence, gathered as it is
// read.
//
// Gathers only the signals that a method asks for (Signal). Queries come from the model's pass
// (model/tap.h). Attention is summed when a block is sealed, so the sums do not depend on how a
// prompt was cut into steps. engine/scoring.h then computes scores for several methods.
//
//   Observer observer(runtime, root, method.needs, method.window, prompt.size());
//   ... each step: its tap is observer.before_step(past, rows); then observer.after_step(runtime, s)
//   observer.finish(runtime, s);
//   TRY(const auto scored, observer.score(runtime, s, {&method, 1}));
//   KeepSets keep = choose(method, scored[0].view(), budget);
//
// A copy is the observer of a fork.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/runtime.h"
#include "kv/retain/observe.h"
#include "kv/retain/retain.h"

namespace quire {

class Stepper;

// Scores of all lanes under one method, as choose() wants them.
struct LaneScoring {
  std::uint32_t kv_heads = 1;
  std::vector<float> scores, weights;
  std::vector<std::uint32_t> begin = {0};

  LaneScores view() const { return {kv_heads, scores, weights, begin}; }
};

class Observer {
 public:
  Observer(const Runtime& runtime, RootId root, Signal needs, std::uint32_t window,
           std::uint32_t prompt_length);

  std::uint32_t kv_heads() const { return kv_heads_; }
  // Layers whose lanes are compacted, in order: lane = index here * kv_heads + head.
  const std::vector<std::uint32_t>& layers() const { return layers_; }

  // For a step that reads `rows` tokens after `past`; null where it need not watch.
  Tap* before_step(std::uint32_t past, std::uint32_t rows);
  void after_step(Runtime& runtime, const Sequence& s);
  // The prompt has been read: queries of the open block count from now on, too.
  void finish(Runtime& runtime, const Sequence& s);

  // Reads the context again in a fork, to see which slots its queries look at (Signal::peak_mass).
  // At most `rows` at a time. True: all of it has been read.
  Result<bool> read_some(Stepper& stepper, const Sequence& s, std::uint32_t rows);
  Status read_again(Stepper& stepper, const Sequence& s);  // all at once
  bool has_read_again() const { return has_read_again_; }
  void set_marks(std::vector<std::uint8_t> by_token) { marks_ = std::move(by_token); }

  // All at once. The methods must look at the same number of last queries.
  Result<std::vector<LaneScoring>> score(Runtime& runtime, const Sequence& s,
                                         std::span<const RetainMethod> methods);
  double seconds() const { return seconds_; }  // spent on summing attention while tokens were read
  // Attention that a lane's slots got so far, averaged over its query heads; empty if not gathered.
  std::vector<float> mass(std::uint32_t lane) const;

  // A compaction was carried out: lanes now hold only these of their slots.
  void kept(const KeepSets& keep);

 private:
  friend class Scoring;
  struct Rereading;                                     // where it stands
  using ByQueryHead = std::vector<std::vector<float>>;  // [layer index * query heads + head][slot]
  struct Gathered {  // one layer's RetainInput and what it points to
    std::vector<std::uint32_t> tokens;
    std::vector<float> keys, values, window, below, total, peak, mean, covariance, norms;
    std::vector<double> cosines, sines;
    std::vector<std::uint8_t> marks;
    RetainInput in;
  };

  bool asked(Signal s) const { return asks(needs_, s); }
  std::uint32_t group() const { return query_heads_ / kv_heads_; }
  void work(Runtime& runtime, const Sequence& s, std::uint32_t end);
  // Adds the attention of these tokens' queries; `to` gets a number for every slot there is.
  void add_mass(Runtime& runtime, const Sequence& s, Tap& tap, MassAsk ask, ByQueryHead& to) const;
  // Sums over the last queries and all queries, which scores of these methods need.
  void sum_last_queries(Runtime& runtime, const Sequence& s, std::span<const RetainMethod> methods);
  double slot_operations(Signal needs) const;  // of scoring a slot of a lane, about
  void gather(const Runtime& runtime, const Sequence& s, Signal needs, std::uint32_t index,
              std::uint32_t head, std::uint32_t heads, Gathered& to) const;
  void gather_moments(const Runtime& runtime, std::uint32_t index, std::uint32_t query_head,
                      Gathered& to) const;

  Signal needs_;
  std::uint32_t window_, prompt_length_;
  std::uint32_t query_heads_, kv_heads_, head_dim_;
  std::vector<std::uint32_t> layers_;
  std::optional<Tap> tap_;
  std::uint32_t worked_ = 0;  // tokens whose queries are in mass_
  double seconds_ = 0;
  ByQueryHead mass_, peak_, window_mass_, below_;
  std::vector<QueryMoments> moments_;  // [layer index * query heads + head]
  std::vector<std::uint8_t> marks_;    // by token
  // A copy does not inherit it: a fork reads again from the beginning.
  struct OwnRereading {
    OwnRereading() = default;
    OwnRereading(const OwnRereading& o);
    OwnRereading& operator=(const OwnRereading&) {
      at = nullptr;
      return *this;
    }
    mutable std::shared_ptr<Rereading> at;
  } rereading_;
  bool has_read_again_ = false;
};

// Most tokens that Observer::read_again reads at a time.
std::uint32_t repeat_tokens(std::uint32_t context);

// Marks of the tokens (separators and the like), for methods that ask for them.
std::vector<std::uint8_t> token_marks(const Tokenizer& tokenizer, std::span<const TokenId> tokens);

}  // namespace quire
