// engine/retain.h - the retention of one sequence: it watches while tokens are read, and decides and
// compacts when the prompt has been read or, while decoding, when enough blocks were sealed.
//
// Made for a sequence with a policy, and handed to every step of it (StepItem::retain). What is due
// is done before the sequence's next step: a step that finds no room for it fails like any other and
// can be tried again. Who wants it done at once calls act().
//
//   Retaining retaining(runtime, policy, prompt.size(), root);
//   cache.open({..., .serve_max = retaining.serve_max(), .recomputable = false});
//   runtime.step({{{&s, tokens, Logits::last, &retaining}}});
//
// A copy goes with a fork. Preempted before it acted, the sequence may be computed again after
// reset(); afterwards it can only be parked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/compaction.h"
#include "engine/observer.h"
#include "kv/retain/policy.h"

namespace quire {

class Retaining {
 public:
  Retaining(const Runtime& runtime, std::shared_ptr<const RetainPolicy> policy,
            std::uint32_t prompt_length, RootId root);

  Observer& observer() { return observer_; }
  // The first tokens of the prompt that may come from the cache: queries of the others are looked at.
  std::uint32_t serve_max() const;
  // Rows that a step may read after so many tokens: it acts where the policy cuts the prompt.
  std::uint32_t rows_max(std::uint32_t length) const {
    return length < prompt_length_ ? prompt_length_ - length : 0xffffffffu;
  }
  const RetainPolicy& policy() const { return *policy_; }
  std::uint32_t cut() const { return prompt_length_; }  // tokens that it looks at
  // Tokens that a sequence must have room for besides its own: the context, read again.
  std::uint32_t more_tokens() const;
  std::uint32_t position_shift() const {
    return shift_;
  }                                      // a position is a token's index less this
  bool acted() const { return acted_; }  // something was dropped: it cannot be computed again
  void reset();                          // nothing was read yet

  // Whether the prompt must be read again before it can act; that may be done beforehand, so many
  // rows at a time.
  bool reads_again(const Runtime& runtime, const Sequence& s) const;
  Status read_some(Runtime& runtime, const Sequence& s, std::uint32_t rows);

  bool due(const Runtime& runtime, const Sequence& s) const;
  // Does what is due. No room changes nothing, or leaves the rest for the next time.
  Status act(Runtime& runtime, Sequence& s);

 private:
  bool all_stay(const Runtime& runtime, const Sequence& s) const;
  Status decide(Runtime& runtime, Sequence& s);
  Status rebase(Runtime& runtime, Sequence& s);

  std::shared_ptr<const RetainPolicy> policy_;
  Observer observer_;
  std::shared_ptr<const Observer> fresh_;  // as it was before anything was read
  std::uint32_t prompt_length_, budget_;
  bool prompt_done_ = false, acted_ = false;
  std::uint32_t last_ = 0;                // length when it last ran
  std::uint32_t shift_ = 0;               // endless text: how far positions are behind
  std::vector<MergeState> merge_states_;  // by lane
  std::optional<Compaction> compaction_;  // decided, not done
};

}  // namespace quire
