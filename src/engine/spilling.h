// engine/spilling.h - the program of a request that is larger than the memory it may hold (kv.resident).
//
// Sealed blocks are written to a tier under the keys of their chain, like those of any other request. When
// a block is there, and newer ones need its room, it becomes cold: it stays part of the sequence, leaves
// the arena, and is read for every step (engine/cold_reader.h). Cold blocks are the first ones of the
// sequence. What a prompt has in tiers already becomes cold at once and is not loaded.
//
//   |- cold: in a tier -----------|- held: in the arena, not more than SpillShape::held_blocks -| open |
//
// When a tier loses a block the sequence goes back to where it began, computes it again, and takes those
// that follow from the tier. The sequence leaves nothing in the prefix index.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/cold_reader.h"
#include "engine/program.h"
#include "engine/runtime.h"

namespace quire {

// The memory that a request with this policy may hold.
SpillMemory spill_memory(const Runtime& runtime, const KvPolicy& policy);

class Spilling final : public Program {
 public:
  Spilling(Runtime& runtime, const SpillShape& shape, RootId root, std::string tenant);
  ~Spilling() override;

  std::unique_ptr<Program> fork() const override;
  void open(SequenceOptions& options) const override { options.publish = false; }
  std::optional<std::uint32_t> take_stored(Stepper&, Sequence&, const PromptRecords& records,
                                           std::span<const TierPlace> places) override;
  Work work(Stepper&, Sequence&, double& rows) override;
  std::string problem() const override { return problem_; }
  FailureKind problem_kind() const override { return FailureKind::tier; }
  Status before_step(Stepper&, Sequence&) override;
  ColdBlocks* cold() override { return reader_.blocks() > 0 ? &reader_ : nullptr; }
  std::uint32_t rows_max(std::uint32_t past) const override;
  void after_step(Stepper&, Sequence&) override;
  Yield yield(const Sequence&) const override { return Yield::recompute; }
  void reset(Sequence&) override;
  void report(ProgramReport& report) const override;

 private:
  // What is known of blocks; outlives the program while a tier writes them.
  struct Blocks {
    std::deque<ColdSource> source;  // by block
    std::vector<bool> writing;
    std::uint32_t kept = 0, refused = 0;  // writes that ended: stored, or not
    std::vector<RecordName> asked;        // after a loss: names of the first blocks
    std::uint32_t unanswered = 0;         // tiers
  };

  bool stored(std::uint32_t block) const {
    return block < blocks_->source.size() && blocks_->source[block].place != kNowhere;
  }
  std::uint32_t whole(const Sequence& s) const { return s.length() / tokens_; }
  void know(std::uint32_t blocks);
  void save(Sequence& s);
  void cool(Sequence& s, std::uint32_t keep);
  bool adopt(Sequence& s);
  bool waits_too_long();
  void ask_tiers(std::uint32_t blocks);
  void go_back(Sequence& s);
  Work recover(Sequence& s, const ColdReader::Lost& lost);

  Runtime& runtime_;
  const SpillShape shape_;
  const RootId root_;
  const std::string tenant_;
  const Geometry& geometry_;
  const Digest layout_;
  const std::uint32_t tokens_;
  bool rewinds_ = true;  // the other groups hold only rows of the open block
  std::shared_ptr<Blocks> blocks_;
  ColdReader reader_;
  std::uint32_t stalls_ = 0;  // in a row
  std::uint32_t lost_blocks_ = 0, ended_ = 0;
  bool looking_ = false;  // what tiers still have
  Nanoseconds waiting_since_ = 0, refused_at_ = 0;
  std::string problem_;
};

}  // namespace quire
