// engine/stepper.h - runs one step of some sequences: plans it, reserves room, submits, completes
// and commits. The Engine uses it. The lab and tests use it where they compute without requests.
//
//   Stepper stepper(runtime);
//   TRY(Step step, stepper.submit(items));            // room for all of them, or nothing changed
//   TRY(StepResult result, stepper.complete(step));   // rows in the order of the items
//   stepper.commit(step, i, accepted);                // of item i; the rest is given back
//
//   TRY(std::span<float> logits, stepper.run(items)); // all of it, every token accepted
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/program.h"
#include "engine/runtime.h"

namespace quire {

// The pages that each lane chose, by the first token of the part that chose (a token, or a block of
// a prompt).
using ChosenPages = std::map<std::uint32_t, std::vector<std::vector<std::uint32_t>>>;

enum class Logits : std::uint8_t { none, last, all };

// One sequence's part of a step: these tokens come after what it holds.
struct StepItem {
  Sequence* sequence;
  std::span<const TokenId> tokens;
  Logits logits = Logits::last;
  Program* program = nullptr;
  std::uint32_t drafted = 0;         // how many of the last tokens are guesses
  Tap* tap = nullptr;                // where no program brings one
  std::uint32_t position_shift = 0;  // where no program says: a position is an index less this
  ChosenPages* chosen = nullptr;     // for tests: what was chosen

  std::size_t wanted() const {  // rows whose result is wanted
    return logits == Logits::all ? tokens.size() : logits == Logits::last ? 1 : 0;
  }
};

// What is wanted of the rows, and which tokens of the step before they read.
struct StepAsk {
  StepWant want = StepWant::logits;
  bool logprobs = true;  // of the best tokens
  Draws draws = {};
  // By item: the item of the step before whose best token is read in place of its own token. Items
  // then have one token each, and the step before is submitted and not completed.
  std::span<const std::uint32_t> from = {};
};

// A step that was submitted. When it is destroyed, rows that were not committed are given back.
class Step {
 public:
  Step(Step&&) = default;
  Step& operator=(Step&&) = delete;

  // Completed, and a number of this item, which has guesses, is not finite. That may be due to a guess
  // that nobody would have made, so nothing of the item counts.
  bool spoiled(std::size_t item) const {
    return std::ranges::find(spoiled_items, item) != spoiled_items.end();
  }
  // Completed, and a cold block of this item could not be had: its rows are void.
  bool dropped(std::size_t item) const {
    return std::ranges::find(dropped_items, item) != dropped_items.end();
  }

 private:
  friend class Stepper;
  Step(Reservation r, StepWant w, Nanoseconds now) : room(std::move(r)), want(w), submitted(now) {}

  Reservation room;
  StepWant want;
  Nanoseconds submitted;
  std::span<const StepItem> items;  // until it is completed
  std::size_t wanted = 0;
  bool queued = false;     // submitted to the executor; else run when it is completed
  Status submission = {};  // why the executor refused it; complete() returns this error
  StepTicket ticket{};
  std::size_t plan = 0;  // which of the stepper's plans
  std::vector<std::size_t> spoiled_items, dropped_items;
  Draws draws;
};

class Stepper {
 public:
  explicit Stepper(Runtime& runtime) : runtime_(runtime), clock_(runtime.clock()) {}
  Stepper(const Stepper&) = delete;

  Runtime& runtime() { return runtime_; }
  Executor& executor() { return runtime_.executor(); }
  KvCache& cache() { return runtime_.cache(); }
  std::uint32_t rows_max() const { return runtime_.executor().traits().rows_max; }

  // Lets programs do what is due, reserves room and submits. Items must stay valid until
  // complete(), which also reports a lost device. Code::exhausted: there is no room, and nothing
  // changed.
  Result<Step> submit(std::span<const StepItem> items, const StepAsk& ask = {});
  // Results of the wanted rows, in the order of the items, valid until the next step. Steps
  // complete in the order of submission. A sequence whose numbers are not finite is marked as
  // faulted.
  Result<StepResult> complete(Step& step);
  // The first `accepted` tokens of item i became part of its sequence. Items commit in any order.
  void commit(Step& step, std::span<const StepItem> items, std::size_t i, std::uint32_t accepted);
  void commit(Step& step, std::span<const StepItem> items);  // all tokens of all items

  // submit(), complete() and commit(). Logits are [wanted rows][vocabulary], valid until the next
  // step.
  Result<std::span<float>> run(std::span<const StepItem> items);
  Result<std::span<const BestToken>> run_best(std::span<const StepItem> items);

  // Computes again some tokens that a sequence holds, in the layers up to `last_layer`: ascending,
  // rows of one step. No other sequence may share their blocks, and their format is exact.
  Status compute_again(Sequence& s, std::span<const std::uint32_t> tokens,
                       std::uint32_t last_layer);

  // Computes the tokens that the sequence knows and does not hold yet, up to `end`, in steps of at
  // most `chunk` rows. `progress` is called between steps; if it returns false, the error is
  // Code::cancelled.
  Status prefill(Sequence& s, std::uint32_t end, std::uint32_t chunk = 0,
                 const std::function<bool(std::uint32_t done)>& progress = {},
                 Program* program = nullptr);
  // How many rows a step of a prompt may have. In a sparse layout they are whole blocks.
  std::uint32_t chunk_rows(const Sequence& s, std::uint32_t chunk) const;
  // prefill() to the end of the tokens it knows. Returns the logits of the last one.
  Result<std::span<float>> read(Sequence& s, std::uint32_t chunk = 0,
                                const std::function<bool(std::uint32_t done)>& progress = {},
                                Program* program = nullptr);

  Nanoseconds forward_time() const { return forward_time_; }  // in the executor, over all steps

 private:
  // What one StepPlan points to. Kept, so that a step allocates nothing once they have grown.
  struct Plan {
    std::vector<TokenId> tokens;
    std::vector<std::uint32_t> positions, wanted;
    std::vector<std::vector<KvSequenceView>> sequences;  // by group
    std::vector<KvView> views;
    std::vector<Tap*> taps;
    std::deque<PageReads> page_reads;
    std::vector<const PageReads*> reads;
    bool tapped = false;

    void clear(std::size_t group_count);
  };

  Status check_items(std::span<const StepItem> items) const;
  const Geometry& geometry(const StepItem& item) const {
    return runtime_.cache().geometry(item.sequence->root());
  }
  // Items that are computed together: of one storage policy, and all of their blocks in the arena; or a
  // single one that has cold blocks.
  struct Part {
    const Geometry* geometry;
    ColdBlocks* cold;
    bool operator==(const Part&) const = default;
  };
  Part part_of(const StepItem& item) const {
    return {&geometry(item), item.program ? item.program->cold() : nullptr};
  }
  void find_parts(std::span<const StepItem> items);
  StepPlan plan(Plan& to, const Reservation& room, std::span<const StepItem> items,
                const Part& part, const StepAsk& ask);
  void add_item(Plan& to, const Reservation& room, std::span<const StepItem> items, std::size_t i,
                const Geometry& g, const StepAsk& ask);
  void set_views(Plan& to, const Geometry& g) const;
  Result<StepResult> run_apart(Step& step);
  void mark_faulted(Step& step, const StepResult& result) const;
  static void mark_faulted(Step& step, std::size_t item);

  Runtime& runtime_;
  const Clock& clock_;
  Nanoseconds forward_time_ = 0, completed_ = 0;  // when the last step was
  std::uint32_t turn_ = 0;
  Plan plans_[3];  // of two steps on their way, and of compute_again
  std::vector<StepNeed> needs_;
  std::vector<Part> parts_;
  std::vector<float> logits_;  // these three: of steps whose sequences are stored in several ways
  std::vector<BestToken> best_;
  std::vector<Drawn> drawn_;
};

}  // namespace quire
