#include "engine/draft/drafter.h"

#include <algorithm>
#include <utility>

#include "engine/draft/pace.h"
#include "kv/sequence.h"

namespace quire {
namespace {

constexpr double kUnknownRate = 0.5;  // of a source that has never spoken

}  // namespace

Drafter::Drafter(const DraftScene& scene) {
  const auto add = [&](std::size_t kind, std::unique_ptr<DraftSource> source) {
    if (source) sources_.push_back({kind, std::move(source), {}});
  };
  if (scene.options.source) add(0, scene.options.source(scene));
  const std::span<const DraftSourceKind> all = draft_sources();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (scene.options.sources >> i & 1) add(i, all[i].make(scene));
}

std::unique_ptr<Drafter> Drafter::fork() const {
  std::unique_ptr<Drafter> copy(new Drafter);
  copy->known_ = known_;
  for (const Own& own : sources_)
    copy->sources_.push_back({own.kind, own.source->fork(), own.rates});
  return copy;
}

bool Drafter::propose(const Sequence& s, TokenId next, std::uint32_t count,
                      std::span<const TokenId> end_tokens, const SourceRates& rates) {
  if (std::exchange(paused_, false) || count == 0) return false;
  const std::span<const TokenId> tokens = s.tokens();
  if (known_.size() <= tokens.size()) {
    known_.insert(known_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(known_.size()),
                  tokens.end());
    known_.push_back(next);
  }
  double gain = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Own& own = sources_[i];
    other_.assign(1, next);
    const Guess guess = own.source->guess(s, known_, count, other_);
    // A token that ends the answer needs no row of its own.
    const auto end = std::ranges::find_first_of(other_.begin() + 1, other_.end(),
                                                end_tokens.begin(), end_tokens.end());
    other_.erase(end, other_.end());
    if (other_.size() < 2) continue;
    const double rate =
        own.rates.of(guess.evidence, rates[own.kind].of(guess.evidence, kUnknownRate));
    const double expected = expected_right(rate, static_cast<std::uint32_t>(other_.size()) - 1);
    if (expected <= gain) continue;
    gain = expected;
    rows_.swap(other_);
    best_ = i;
    at_ = own.kind;
    rate_ = rate;
    evidence_ = guess.evidence;
  }
  return gain > 0;
}

void Drafter::judged(std::uint32_t right, std::uint32_t drafted, SourceRates& rates) {
  sources_[best_].rates.add(evidence_, right, drafted);
  rates[at_].add(evidence_, right, drafted);
}

}  // namespace quire
