#include "engine/beams.h"

#include <algorithm>
#include <cmath>

namespace quire {

BeamSearch::BeamSearch(BeamOptions options, Sequence prompt) : options_(std::move(options)) {
  open_.push_back({std::move(prompt), {}, {}, 0, false});
}

double BeamSearch::final_score(const Beam& b) const {
  return b.score / std::pow(static_cast<double>(std::max<std::size_t>(b.tokens.size(), 1)),
                            options_.length_penalty);
}

// The best final score that a beam can still reach. Sums only fall as tokens are added; with a
// positive penalty the score is highest at the full length.
double BeamSearch::attainable(const Beam& b) const {
  const std::size_t length = options_.length_penalty > 0 ? options_.tokens_max : b.tokens.size();
  return b.score /
         std::pow(static_cast<double>(std::max<std::size_t>(length, 1)), options_.length_penalty);
}

bool BeamSearch::is_end(TokenId token) const {
  return std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
}

Result<bool> BeamSearch::advance(KvCache& cache, Sampler& sampler, std::span<const float> logits) {
  const std::uint32_t width = options_.width;
  const std::size_t vocabulary = logits.size() / open_.size();
  struct Extension {
    std::size_t beam;
    TokenLogprob token;
    double score;
  };
  std::vector<Extension> extensions;
  std::vector<std::vector<TokenLogprob>> best(open_.size());  // next tokens of each beam
  // Twice the width per beam: `width` remain even if half of them end here. More where end tokens
  // are not allowed yet.
  const std::size_t wanted =
      2 * width + (length_ < options_.tokens_min ? options_.end_tokens.size() : 0);
  for (std::size_t b = 0; b < open_.size(); ++b) {
    best[b] =
        sampler.top(logits.subspan(b * vocabulary, vocabulary),
                    static_cast<std::uint32_t>(std::max<std::size_t>(wanted, options_.logprobs)));
    for (std::size_t i = 0; i < std::min(wanted, best[b].size()); ++i)
      if (length_ >= options_.tokens_min || !is_end(best[b][i].token))
        extensions.push_back({b, best[b][i], open_[b].score + best[b][i].logprob});
  }
  // Ties: earlier beam, lower id.
  std::stable_sort(extensions.begin(), extensions.end(),
                   [](const Extension& a, const Extension& b) { return a.score > b.score; });
  std::vector<Beam> next;
  for (const Extension& e : extensions) {
    if (next.size() == width) break;
    Beam grown{{}, open_[e.beam].tokens, open_[e.beam].choices, e.score, false};
    grown.tokens.push_back(e.token.token);
    std::vector<TokenLogprob>& top = best[e.beam];
    top.resize(std::min<std::size_t>(top.size(), options_.logprobs));
    grown.choices.push_back({e.token.token, e.token.logprob, top});
    ++tokens_made_;
    grown.ended = is_end(e.token.token);
    if (grown.ended) {
      finished_.push_back(std::move(grown));
      continue;
    }
    TRY(grown.sequence, cache.fork(open_[e.beam].sequence));
    next.push_back(std::move(grown));
  }
  open_ = std::move(next);
  ++length_;
  std::stable_sort(finished_.begin(), finished_.end(),
                   [&](const Beam& a, const Beam& b) { return final_score(a) > final_score(b); });
  if (finished_.size() > width) finished_.resize(width);  // nobody asks for more
  // The search is over when no open beam can still beat the `width` finished ones.
  return !open_.empty() && length_ < options_.tokens_max &&
         (finished_.size() < width ||
          final_score(finished_[width - 1]) < attainable(open_.front()));
}

std::vector<Beam> BeamSearch::best() {
  for (Beam& b : open_) finished_.push_back(std::move(b));
  open_.clear();
  std::stable_sort(finished_.begin(), finished_.end(),
                   [&](const Beam& a, const Beam& b) { return final_score(a) > final_score(b); });
  finished_.resize(std::min<std::size_t>(options_.choices, finished_.size()));
  for (Beam& b : finished_) b.sequence.close();
  return std::move(finished_);
}

}  // namespace quire
