// engine/beams.h - beam search over forked sequences: which tokens continue which hypothesis.
//
// The caller runs the model; this class keeps the hypotheses. Used by the engine, where beams of
// many requests share a step.
//
//   BeamSearch search({.width = 4, .choices = 2, .tokens_max = 32}, std::move(prompt_sequence));
//   for (;;) {
//     TRY(bool more, search.advance(cache, sampler, logits));  // [open beams][vocabulary]
//     if (!more) break;
//     for (Beam& b : search.open()) ...                        // b.sequence reads b.tokens.back()
//   }
//   for (Beam& b : search.best()) ...                          // best first
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "kv/cache.h"

namespace quire {

struct BeamOptions {
  std::uint32_t width = 1, choices = 1;
  std::uint32_t tokens_max = 1, tokens_min = 0;
  float length_penalty = 1;         // sums of log-probabilities are divided by length^penalty
  std::uint32_t logprobs = 0;       // alternatives kept per token
  std::vector<TokenId> end_tokens;  // that end a hypothesis
};

// One hypothesis. Its sequence has read all its tokens but the last. A finished beam has no
// sequence.
struct Beam {
  Sequence sequence;
  std::vector<TokenId> tokens;
  std::vector<Choice> choices;  // one per token
  double score = 0;             // sum of log-probabilities
  bool ended = false;           // by an end token
};

class BeamSearch {
 public:
  BeamSearch(BeamOptions options, Sequence prompt);

  // Extends every open beam by the logits of its last row. False: the search is over.
  Result<bool> advance(KvCache& cache, Sampler& sampler, std::span<const float> logits);

  std::span<Beam> open() { return open_; }
  std::uint64_t tokens_made() const { return tokens_made_; }
  // The `choices` best hypotheses, best first; ends the search.
  std::vector<Beam> best();
  double final_score(const Beam& beam) const;

 private:
  double attainable(const Beam& beam) const;
  bool is_end(TokenId token) const;

  BeamOptions options_;
  std::vector<Beam> open_, finished_;
  std::uint32_t length_ = 0;
  std::uint64_t tokens_made_ = 0;
};

}  // namespace quire
