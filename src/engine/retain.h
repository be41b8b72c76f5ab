// engine/retain.h - the program of a request that drops tokens (kv.budget). It gathers signals
// while tokens are read. It drops tokens when the prompt has been read and, while decoding,
// whenever enough blocks were sealed.
//
// Tokens that are due are dropped before the sequence's next step, or at once by settle(). Deciding
// which ones may take long: work() does it in parts, before other steps. If there is no room for
// dropping them, the step fails like any other and can be tried again. Which tokens are
// dropped, and when, depends only on tokens and policy, never on how steps were cut.
//
//   Retaining retaining(runtime, policy, prompt.size(), root);
//   retaining.open(options);
//   stepper.run({{{&s, tokens, Logits::last, &retaining}}});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/compaction.h"
#include "engine/observer.h"
#include "engine/program.h"
#include "engine/scoring.h"
#include "kv/retain/policy.h"

namespace quire {

class Retaining final : public Program {
 public:
  Retaining(const Runtime& runtime, std::shared_ptr<const RetainPolicy> policy,
            std::uint32_t prompt_length, RootId root);

  std::unique_ptr<Program> fork() const override { return std::make_unique<Retaining>(*this); }
  void open(SequenceOptions& options) const override;
  Work work(Stepper& stepper, Sequence& s, double& rows) override;
  Status before_step(Stepper& stepper, Sequence& s) override { return drop_due(stepper, s); }
  std::string problem() const override { return problem_; }
  void settle(Stepper& stepper, Sequence& s) override;
  bool due(const Sequence& s) const override;
  std::uint32_t rows_max(std::uint32_t past) const override;
  std::uint32_t position_shift() const override { return shift_; }
  Tap* tap(std::uint32_t past, std::uint32_t rows) override {
    return observer_.before_step(past, rows);
  }
  void after_step(Stepper& stepper, Sequence& s) override;
  Yield yield(const Sequence&) const override { return dropped_ ? Yield::park : Yield::recompute; }
  void reset(Sequence& s) override;
  Status truncate(std::uint32_t length) override;
  std::optional<std::string> snapshot_name(const Sequence& s) const override;
  std::optional<std::string> wanted_snapshot() const override;

  Observer& observer() { return observer_; }
  const RetainPolicy& policy() const { return *policy_; }
  std::uint32_t cut() const { return prompt_length_; }  // tokens of the prompt that it looks at
  // How many of the prompt's first tokens may come from the cache: the method needs queries of the
  // rest.
  std::uint32_t serve_max() const;
  // Tokens that the sequence needs room for besides its own: the context, if it is read again.
  std::uint32_t more_tokens() const;

  // Drops the tokens that are due. If there is no room, some or all of them wait for the next call.
  Status drop_due(Stepper& stepper, Sequence& s);

 private:
  bool all_stay(const Runtime& runtime, const Sequence& s) const;
  bool decided(const Runtime& runtime, const Sequence& s) const;
  // Decides what stays, as much as computing `rows` rows would be. True: decided.
  Result<bool> decide_some(Stepper& stepper, Sequence& s, double& rows);
  Status rebase(Runtime& runtime, Sequence& s);

  std::shared_ptr<const RetainPolicy> policy_;
  Observer observer_;
  std::shared_ptr<const Observer> fresh_;  // as it was before anything was read
  std::uint32_t prompt_length_, budget_, tokens_per_block_;
  bool prompt_done_ = false, dropped_ = false;  // dropped_: it cannot be computed again
  std::uint32_t last_ = 0;                      // length when it last ran
  std::uint32_t shift_ = 0;                     // endless text: how far positions are behind
  std::vector<MergeState> merge_states_;        // by lane
  std::optional<Scoring> scoring_;              // under way
  std::optional<Compaction> compaction_;        // decided but for merging, not done
  bool merges_ = false;                         // it has yet to merge
  std::string problem_;                         // why it cannot be decided
};

}  // namespace quire
