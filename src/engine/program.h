// engine/program.h - what the policies of a request do with one sequence, as hooks.
//
// A program belongs to one answer and takes part in every step of its sequence (StepItem::program).
// The engine calls its hooks and knows no policy by name. Programs: Retaining (kv.budget),
// Selecting (kv.select), Spilling (kv.resident), Blending (kv.reuse: approximate), Converting (kv.convert), Pooler (pooling).
// A request with several has a ProgramList. engine/combine.h says which may be combined.
//
//   ProgramList programs = make_programs(runtime, request, root);
//   programs.open(options);                            // before the sequence is opened
//   stepper.submit({{{&s, tokens, Logits::last, &programs}}});
//
// Adding a policy: one class with the hooks it needs, one line in programs.cc, one in combine.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "kv/cache.h"
#include "model/cold_blocks.h"
#include "model/page_reads.h"
#include "model/tap.h"

namespace quire {

class Stepper;
struct PromptRecords;

// How a sequence may give way when memory is short.
enum class Yield : std::uint8_t {
  either,     // whatever costs less
  recompute,  // it starts over: reset() is called
  park,       // what it holds cannot be computed again
};

// What a program held and read, for the answer's report.
struct ProgramReport {
  std::uint64_t bytes_beside = 0;                    // held besides the cache
  std::uint64_t bytes_read = 0, bytes_readable = 0;  // by answers that choose what they read
  std::uint64_t cold_bytes = 0,
                cold_hidden_bytes = 0;             // read from tiers; before they were waited for
  std::uint32_t cold_blocks = 0, lost_blocks = 0;  // not in the arena at the end; computed again
  std::uint32_t approximate_tokens = 0;            // reused without being computed
  bool converted = false;     // the sequence began with blocks encoded from others
  std::vector<float> pooled;  // states of the prompt (Request::pooling)

  void add(const ProgramReport& o) {
    bytes_beside += o.bytes_beside;
    bytes_read += o.bytes_read;
    bytes_readable += o.bytes_readable;
    cold_bytes += o.cold_bytes;
    cold_hidden_bytes += o.cold_hidden_bytes;
    cold_blocks += o.cold_blocks;
    lost_blocks += o.lost_blocks;
    approximate_tokens += o.approximate_tokens;
    converted |= o.converted;
    if (pooled.empty()) pooled = o.pooled;
  }
};

class Program {
 public:
  virtual ~Program() = default;
  virtual std::unique_ptr<Program> fork() const = 0;  // of a fork of the sequence

  // What the sequence is opened with.
  virtual void open(SequenceOptions&) const {}
  // Attaches the sequence for the first time. Nothing: the cache attaches it as usual. The sequence
  // was opened with `options`.
  virtual std::optional<Attached> attach(Stepper&, Sequence&, const SequenceOptions&) { return {}; }
  // Blocks of the prompt from the sequence's length on lie in tiers: places[i] is where names[i] of the
  // records is. A program may make them part of the sequence instead of having them loaded. Returns
  // how many tokens; none: they are loaded as usual.
  virtual std::optional<std::uint32_t> take_stored(
      Stepper&, Sequence&, const PromptRecords&,
      [[maybe_unused]] std::span<const TierPlace> places) {
    return {};
  }
  // It has been attached.
  virtual void attached(Stepper&, Sequence&, const SequenceOptions&) {}

  // Does work that must be done before the sequence's next rows, about as much as computing `rows`
  // rows would be, and takes what it used from `rows`. With none left it does nothing.
  enum class Work : std::uint8_t {
    none,        // nothing to do
    done,        // did the last of it now
    unfinished,  // there is more: no rows of the sequence in this step
    waits,       // something else has to happen first: no rows of the sequence in this step
    failed,      // it cannot be done: problem() says why, and the request ends
  };
  virtual Work work(Stepper&, Sequence&, [[maybe_unused]] double& rows) { return Work::none; }
  virtual std::string problem() const { return {}; }
  virtual FailureKind problem_kind() const { return FailureKind::model_file; }
  // The prompt has been read as far as the program looks at it. The program does now what takes no
  // long work.
  virtual void settle(Stepper&, Sequence&) {}
  // Whether something is to be done before the sequence's next rows. What forks of the sequence
  // would do, too, is done by one of them for all.
  virtual bool due(const Sequence&) const { return false; }
  // Does what is due before the sequence's next rows. Code::exhausted: no room now, try again
  // later.
  virtual Status before_step(Stepper&, Sequence&) { return {}; }

  // Blocks of the sequence that are not in the arena, for its next rows; null: all are.
  virtual ColdBlocks* cold() { return nullptr; }
  // Rows that the next step may read after `past` tokens.
  virtual std::uint32_t rows_max([[maybe_unused]] std::uint32_t past) const { return 0xffffffffu; }
  // Rows of a step choose pages in parts. Returns the end of the part that begins at `first`.
  virtual std::uint32_t part_end([[maybe_unused]] std::uint32_t first, std::uint32_t end) const {
    return end;
  }
  virtual std::optional<PageReads> reads([[maybe_unused]] std::uint32_t first) { return {}; }
  // A token's position is its index less this.
  virtual std::uint32_t position_shift() const { return 0; }
  // Records queries of the next rows; null: nothing is recorded.
  virtual Tap* tap([[maybe_unused]] std::uint32_t past, [[maybe_unused]] std::uint32_t rows) {
    return nullptr;
  }
  // The step's rows have become part of the sequence.
  virtual void after_step(Stepper&, Sequence&) {}

  virtual Yield yield(const Sequence&) const { return Yield::either; }
  // The sequence lost its blocks and is computed again from its first token. The program will do
  // the same as before at the same places.
  virtual void reset(Sequence&) {}
  // The sequence is rolled back to `length` tokens; an error says why that is impossible.
  virtual Status truncate([[maybe_unused]] std::uint32_t length) { return {}; }
  // Whether the next step may be planned before this one's tokens are known.
  virtual bool plans_ahead() const { return false; }

  // Names the present state if it depends only on the sequence's tokens and the policy, so that
  // other requests may start from it. Nothing: it depends on more, or the program has no such
  // states.
  virtual std::optional<std::string> snapshot_name(const Sequence&) const { return {}; }
  // The name of a state that the program may start from.
  virtual std::optional<std::string> wanted_snapshot() const { return {}; }

  virtual void report(ProgramReport&) const {}
};

// The programs of one answer: each hook asks them all.
class ProgramList final : public Program {
 public:
  ProgramList() = default;
  ProgramList(ProgramList&&) = default;
  ProgramList& operator=(ProgramList&&) = default;

  void add(std::unique_ptr<Program> program) { list_.push_back(std::move(program)); }
  bool empty() const { return list_.empty(); }
  ProgramList fork_list() const;

  std::unique_ptr<Program> fork() const override;
  void open(SequenceOptions& options) const override;
  std::optional<Attached> attach(Stepper&, Sequence&, const SequenceOptions&) override;
  void attached(Stepper&, Sequence&, const SequenceOptions&) override;
  Work work(Stepper&, Sequence&, double& rows) override;
  std::string problem() const override;
  FailureKind problem_kind() const override;
  std::optional<std::uint32_t> take_stored(Stepper&, Sequence&, const PromptRecords&,
                                           std::span<const TierPlace> places) override;
  ColdBlocks* cold() override;
  void settle(Stepper&, Sequence&) override;
  bool due(const Sequence&) const override;
  Status before_step(Stepper&, Sequence&) override;
  std::uint32_t rows_max(std::uint32_t past) const override;
  std::uint32_t part_end(std::uint32_t first, std::uint32_t end) const override;
  std::optional<PageReads> reads(std::uint32_t first) override;
  std::uint32_t position_shift() const override;
  Tap* tap(std::uint32_t past, std::uint32_t rows) override;
  void after_step(Stepper&, Sequence&) override;
  Yield yield(const Sequence&) const override;
  void reset(Sequence& s) override;
  Status truncate(std::uint32_t length) override;
  bool plans_ahead() const override;
  std::optional<std::string> snapshot_name(const Sequence&) const override;
  std::optional<std::string> wanted_snapshot() const override;
  void report(ProgramReport&) const override;

 private:
  std::vector<std::unique_ptr<Program>> list_;
};

}  // namespace quire
