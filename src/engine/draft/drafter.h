// engine/draft/drafter.h - the drafts of one answer: asks its sources, remembers what came true.
//
//   Drafter drafter(scene, shared);
//   if (drafter.propose(sequence, next, 8)) ...          // guesses: drafter.length(), .rate()
//   step rows: drafter.rows(4);                          // the next token, then four guesses
//   drafter.judged(2);                                   // two of them came true
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/draft/rates.h"
#include "engine/draft/source.h"
#include "engine/sampler.h"

namespace quire {

using SourceRates = std::array<DraftRates, kDraftSourcesMax>;

class Drafter {
 public:
  explicit Drafter(const DraftScene& scene);
  std::unique_ptr<Drafter> fork() const;  // of another answer with the same beginning

  // Asks the sources for up to `count` tokens after `next`, which comes after the sequence's
  // tokens. False: no source has a guess.
  bool propose(const Sequence& s, TokenId next, std::uint32_t count,
               std::span<const TokenId> end_tokens, const SourceRates& rates);
  std::uint32_t length() const { return static_cast<std::uint32_t>(rows_.size()) - 1; }
  double rate() const { return rate_; }       // that a token is right, if those before it were
  std::size_t source() const { return at_; }  // index into draft_sources()
  // The next token and the first `drafted` guesses, until the next propose().
  std::span<const TokenId> rows(std::uint32_t drafted) const {
    return std::span(rows_).first(1 + drafted);
  }
  // The first `right` of `drafted` tokens came true.
  void judged(std::uint32_t right, std::uint32_t drafted, SourceRates& rates);
  // The next step has no draft: this one broke off.
  void pause() { paused_ = true; }

  std::vector<Choice> drawn;  // of the step at hand, in order

 private:
  struct Own {
    std::size_t kind;  // index into draft_sources()
    std::unique_ptr<DraftSource> source;
    DraftRates rates;
  };
  Drafter() = default;

  std::vector<Own> sources_;
  std::vector<TokenId> known_;         // prompt and answer
  std::vector<TokenId> rows_, other_;  // the best proposal, and one to compare it with
  std::size_t best_ = 0, at_ = 0;
  std::uint32_t evidence_ = 0;
  double rate_ = 0;
  bool paused_ = false;
};

}  // namespace quire
