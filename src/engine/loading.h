// engine/loading.h - blocks of one prompt on their way from tiers into memory.
//
// A job that was admitted has one while stored blocks come. They come from the last one to the
// first, a few at a time, each into a room of its own. When the sequence has come to a block that is
// there, it takes it, and all that follow it. A block that cannot be read is computed, as if it had
// never been stored. The engine thread owns it; a loading that is given up stays alive, room and all,
// until the tier has let go of its memory.
//
//   Loading loading(link, cache, records, stored->place, {.first = 3, .end = 31}, "tenant", now);
//   loading.go_on(sequence, now);                  // before every step: asks for more, takes what is there
//   if (loading.waits(sequence, now)) ...          // no rows: it is better to wait
//   loading.rows(sequence);                        // rows that may be computed until the next block
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "kv/cache.h"
#include "kv/tier/tier_link.h"

namespace quire {

// The whole blocks of a prompt as records. Groups that are never stored have none.
struct PromptRecords {
  static constexpr std::uint32_t kNone = 0xffffffffu;

  std::uint32_t tokens_per_block = 0, columns = 0;
  std::vector<std::uint32_t> column;                              // by group, or kNone
  std::vector<std::vector<RecordSegment>> segments;               // by group
  std::vector<std::shared_ptr<const RecordIdentity>> identities;  // by block and column
  std::vector<RecordName> names;                                  // the same

  std::uint32_t groups() const { return static_cast<std::uint32_t>(column.size()); }
  std::uint32_t blocks() const {
    return columns == 0 ? 0 : static_cast<std::uint32_t>(names.size() / columns);
  }
  std::size_t at(std::uint32_t block, std::uint32_t group) const {
    return std::size_t{block} * columns + column[group];
  }
};

// JournalRecord::extra of blocks that moved (Reason::moved): up from a place of our own or a shared one;
// or down, when somebody asked for it.
inline constexpr std::uint64_t kMovedUp = 0, kMovedDown = 1, kMovedUpShared = 2;

// What tiers say they have of them, as their answers come.
struct Stored {
  std::uint32_t unanswered = 0;  // tiers
  bool known = false;            // one has answered
  std::vector<TierPlace> place;  // by name: the fastest one that has it, or kNowhere

  void answer(TierPlace from, std::span<const std::uint8_t> there);
  bool all() const;  // more answers would tell nothing
};

// Made by the thread that submits: it hashes. None where a model has recurrent state.
std::shared_ptr<const PromptRecords> prompt_records(const KeySecret& secret,
                                                    const Geometry& geometry,
                                                    std::span<const BlockKey> keys,
                                                    std::span<const TokenId> prompt);

class Loading {
 public:
  struct Plan {
    std::uint32_t first = 0, end = 0;  // blocks
    bool waits = true;
    // It waits for so long, and half of what computing the blocks would take that have come. Then
    // computing goes on besides. 0: nobody knows; then it waits for `patience` without progress.
    Nanoseconds patience = 0, computing = 0;
    std::uint64_t request = 0;  // for the journal
    bool copies = false;        // what came from others is offered to our own places, too
  };
  // `places`: where to read each record.
  Loading(TierLink& link, KvCache& cache, std::shared_ptr<const PromptRecords> records,
          std::vector<TierPlace> places, const Plan& plan, std::string tenant, Nanoseconds now);
  ~Loading();  // what is under way ends by itself

  void go_on(Sequence& s, Nanoseconds now);
  bool waits(const Sequence& s, Nanoseconds now);
  std::uint32_t rows(const Sequence& s) const;
  bool over(const Sequence& s) const;  // nothing more will come that it could take

  std::uint32_t adopted_tokens() const { return adopted_; }
  std::uint32_t remote_tokens() const { return remote_; }  // of these: from places that are shared
  bool failed() const;                                     // a block could not be read
  Nanoseconds began() const { return began_; }

 private:
  enum class State : std::uint8_t { waiting, coming, there, taken, failed };
  struct Block {
    State state = State::waiting;
    std::uint32_t parts = 0;  // reads that have not ended
    bool spoilt = false;      // one of them failed
    bool remote = false;      // one of them is of a shared place
    std::uint64_t bytes = 0;  // of them
    LandedBlock room;
  };
  struct Blocks;  // outlives the loading while the tier writes

  void ask(const Sequence& s);
  bool land(const Sequence& s, std::uint32_t block);
  void take(Sequence& s, Nanoseconds now);
  void note(std::uint32_t from, std::uint32_t to);  // blocks that it took
  std::uint32_t place(const Sequence& s) const { return s.length() / tokens_per_block_; }
  State state(std::uint32_t block) const;

  TierLink& link_;
  KvCache& cache_;
  std::shared_ptr<const PromptRecords> records_;
  std::vector<TierPlace> places_;
  Plan plan_;
  std::string tenant_;
  std::uint32_t tokens_per_block_;
  std::shared_ptr<Blocks> blocks_;
  std::uint32_t next_;  // blocks from here on have been asked for
  std::uint32_t adopted_ = 0, remote_ = 0;
  std::uint64_t seen_ = 0;  // blocks that had ended when it last looked
  Nanoseconds began_, progress_;
};

}  // namespace quire
