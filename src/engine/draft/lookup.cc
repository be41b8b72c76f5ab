// Prompt lookup: answers repeat their prompts and themselves. What came after the last tokens when
// they stood in this text before may come again.
#include "engine/draft/lookup.h"

#include "engine/draft/repeats.h"

namespace quire {
namespace {

class Lookup final : public DraftSource {
 public:
  explicit Lookup(const DraftOptions& o) : repeats_(o.lookup_min, o.lookup_max) {}

  std::unique_ptr<DraftSource> fork() const override { return std::make_unique<Lookup>(*this); }

  Guess guess(const Sequence&, std::span<const TokenId> known, std::uint32_t count,
              std::vector<TokenId>& tokens) override {
    repeats_.read(known);
    const Repeat found = repeats_.find(known, known);
    if (found.length == 0) return {};
    const std::size_t first = tokens.size();
    // Behind the end of the text the draft goes on as it began: a loop.
    for (std::size_t at = found.at; tokens.size() < first + count; ++at)
      tokens.push_back(at < known.size() ? known[at] : tokens[first + at - known.size()]);
    return {found.length};
  }

 private:
  Repeats repeats_;
};

}  // namespace

std::unique_ptr<DraftSource> make_lookup(const DraftScene& scene) {
  return std::make_unique<Lookup>(scene.options);
}

}  // namespace quire
