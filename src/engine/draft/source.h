// engine/draft/source.h - where drafts come from: tokens that may follow an answer, for the model to
// check several at a time.
//
// A source guesses; the model's own draw decides (engine/draft/drafter.h). So a bad guess costs
// time and changes no answer. One object belongs to one answer.
//
//   auto source = draft_sources()[0].make({.options = options, .request = request, .cache = cache});
//   Guess guess = source->guess(known, 8, tokens);     // appended to `tokens`
//
// Adding a source: engine/draft/x.cc with a make_x(), one line in sources.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "engine/draft/options.h"
#include "engine/draft/tally.h"

namespace quire {

struct Request;
class KvCache;
class Sequence;

// What an answer's sources may look at.
struct DraftScene {
  const DraftOptions& options;
  const Request& request;
  const KvCache& cache;
};

// How good a guess is: the number of equal tokens before it, in the text that it was found in and
// in this answer. 0: nothing was appended.
struct Guess {
  std::uint32_t evidence = 0;
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  virtual std::unique_ptr<DraftSource> fork()
      const = 0;  // for another answer with the same beginning
  // `known` is the text so far, prompt and answer; it begins as in the call before. Appends at most
  // `count` tokens that may follow.
  virtual Guess guess(const Sequence& sequence, std::span<const TokenId> known, std::uint32_t count,
                      std::vector<TokenId>& tokens) = 0;
};

struct DraftSourceKind {
  std::string_view name;  // in metrics and in --speculative-config
  // Null: this answer has nothing for it to look at.
  std::unique_ptr<DraftSource> (*make)(const DraftScene& scene);
};
std::span<const DraftSourceKind> draft_sources();
inline constexpr std::size_t kCachedDrafts = 1, kPredictionDrafts = 2;

}  // namespace quire
