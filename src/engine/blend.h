// engine/blend.h - a prompt made of texts that are cached behind other prefixes. Their keys and
// values are copied, the keys are rotated to their new positions, and the tokens that differ most
// are computed again (CacheBlend, arXiv 2405.16444). The result is an approximation, so it is
// private.
//
// find_blend() looks for runs of whole cached blocks anywhere in the prompt behind its cached
// prefix. After they are copied, a few layers are computed for all tokens. The tokens whose values
// differ most from the copied ones, a share of `recompute`, are computed in every layer, and so are
// the tokens that were not found. A share of 0 only rotates keys; a share of 1 gives the bits of
// reading the prompt.
//
//   std::optional<Blend> blend = find_blend(runtime, sequence, 0.15, options);   // nothing: read it
//   TRY_STATUS(blend->lay(runtime));
//   while (!blend->done()) TRY_STATUS(blend->advance(stepper, 512));             // rows
//   sequence.length();            // up to the end of the last run
//
// Works for exact formats and layers without windows: window layers drop the tokens they have
// passed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/program.h"
#include "engine/runtime.h"

namespace quire {

class Blend {
 public:
  // A run of tokens of the prompt and the sequence that holds it elsewhere.
  struct Run {
    std::uint32_t to, from, count;
    Sequence source;
  };
  Blend(Sequence& s, double recompute, std::vector<Run> runs);

  // Copies the runs; the sequence then ends behind the last run. If there is no room, nothing
  // changes.
  Status lay(Runtime& runtime);
  // Computes up to `rows` of the tokens that must be computed.
  Status advance(Stepper& stepper, std::uint32_t rows);
  bool done() const { return laid_ && looked_ == end_ && next_ == again_.size(); }

  std::uint32_t reused() const { return reused_; }  // tokens that were not computed again

 private:
  void copy(Runtime& runtime, const Run& run, std::span<const KvSequenceView> views) const;
  std::vector<float> check_values(const Runtime& runtime) const;
  void choose(const Runtime& runtime);

  Sequence* s_;
  double recompute_;
  std::vector<Run> runs_;
  std::uint32_t begin_, end_;  // tokens it is about
  bool laid_ = false;
  std::uint32_t looked_ = 0;          // tokens before it have been compared
  std::vector<float> old_;            // values of the layer that is looked at, by token
  std::vector<std::uint32_t> again_;  // tokens to be computed in every layer
  std::size_t next_ = 0;
  std::uint32_t reused_ = 0;
};

// Finds the parts of a sequence's prompt, behind what it holds, that are cached elsewhere under the
// same root and key changes. Engine thread only. Its time does not depend on how much is cached.
std::optional<Blend> find_blend(Runtime& runtime, Sequence& s, double recompute,
                                const SequenceOptions& options);

// The program of a request that reuses texts in this way (kv.reuse: approximate).
class Blending final : public Program {
 public:
  explicit Blending(double recompute) : recompute_(recompute) {}

  std::unique_ptr<Program> fork() const override;
  void attached(Stepper& stepper, Sequence& s, const SequenceOptions& options) override;
  Work work(Stepper& stepper, Sequence& s, double& rows) override;
  Status before_step(Stepper&, Sequence&) override { return failed_; }
  // A blended prompt cannot be computed again, so the cache must not drop it while it is parked.
  void open(SequenceOptions& options) const override { options.recomputable = false; }
  Yield yield(const Sequence&) const override { return laid_ ? Yield::park : Yield::either; }
  // The whole prompt is then read without reuse: that is exact, so more than was promised.
  void reset(Sequence&) override {
    blend_.reset();
    laid_ = false;
    reused_ = 0;
  }
  bool plans_ahead() const override { return !blend_; }
  void report(ProgramReport& report) const override { report.approximate_tokens += reused_; }

 private:
  double recompute_;
  std::optional<Blend> blend_;  // until it is done
  bool laid_ = false;
  Status failed_;  // a device that was lost in work(): the next step says so
  std::uint32_t reused_ = 0;
};

}  // namespace quire
