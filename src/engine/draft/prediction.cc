// A prediction: the client sends a text that the answer will mostly repeat, such as a file to be
// edited. Where the answer leaves it, it is found again by its last tokens.
#include "engine/draft/prediction.h"

#include <algorithm>

#include "engine/draft/repeats.h"
#include "engine/request.h"

namespace quire {
namespace {

constexpr std::uint32_t kPredictedMin = 2, kPredictedMax = 24;  // tokens that must be equal

class Prediction final : public DraftSource {
 public:
  explicit Prediction(const Request& r)
      : text_(std::make_shared<const std::vector<TokenId>>(r.prediction)),
        prompt_(r.prompt.size()),
        repeats_(kPredictedMin, kPredictedMax) {
    repeats_.read(*text_);
  }

  std::unique_ptr<DraftSource> fork() const override { return std::make_unique<Prediction>(*this); }

  Guess guess(const Sequence&, std::span<const TokenId> known, std::uint32_t count,
              std::vector<TokenId>& tokens) override {
    const std::span<const TokenId> text = *text_, answer = known.subspan(prompt_);
    Repeat found = repeats_.find(text, answer);
    if (answer.size() < kPredictedMin && text.size() > answer.size() &&
        std::ranges::equal(answer, text.first(answer.size())))
      found = {static_cast<std::uint32_t>(answer.size()), 1};
    if (found.length == 0) return {};
    const auto rest = text.subspan(found.at);
    tokens.insert(
        tokens.end(), rest.begin(),
        rest.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(count, rest.size())));
    return {found.length};
  }

 private:
  std::shared_ptr<const std::vector<TokenId>> text_;
  std::size_t prompt_;
  Repeats repeats_;
};

}  // namespace

std::unique_ptr<DraftSource> make_prediction(const DraftScene& scene) {
  return scene.request.prediction.empty() ? nullptr : std::make_unique<Prediction>(scene.request);
}

}  // namespace quire
