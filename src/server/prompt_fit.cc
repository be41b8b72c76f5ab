#include "server/prompt_fit.h"

#include <algorithm>

namespace quire {
namespace {

// A request without the messages from `first` to `begin`.
GenerationRequest without(const GenerationRequest& asked, std::size_t first, std::size_t begin) {
  GenerationRequest out = asked;
  Json::array_t& messages = out.messages.get_ref<Json::array_t&>();
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(first),
                 messages.begin() + static_cast<std::ptrdiff_t>(begin));
  out.dropped = begin - first;
  const auto move = [&](auto& places) {  // parts and breakpoints lie in messages
    std::erase_if(places, [&](const auto& p) {
      return p.message != ConversationPart::kTools && p.message >= first && p.message < begin;
    });
    for (auto& p : places)
      if (p.message != ConversationPart::kTools && p.message >= begin) p.message -= out.dropped;
  };
  move(out.parts);
  move(out.breakpoints);
  return out;
}

}  // namespace

std::optional<ApiError> make_fitting_prompts(GenerationRequest& asked, const Runtime& runtime,
                                             std::vector<Prompt>& out) {
  std::optional<ApiError> error = make_prompts(asked, runtime, out);
  if (!asked.drop_oldest || !error || error->code != "context_length_exceeded") return error;
  const auto attempt = [&](const GenerationRequest& part, bool& fits) {
    out.clear();
    auto failed = make_prompts(part, runtime, out);
    fits = !failed && out.front().tokens.size() <= runtime.context() / 4 * 3;
    return failed;
  };

  std::size_t first = 0;
  while (first < asked.messages.size() && asked.messages[first]["role"] == "system") ++first;
  std::vector<std::size_t> turns;  // where they begin, without the oldest
  for (std::size_t i = first + 1; i < asked.messages.size(); ++i)
    if (asked.messages[i]["role"] == "user") turns.push_back(i);
  if (turns.empty()) return error;
  // The first turn from which on everything fits; if none does, the last one, which may be too long.
  std::size_t low = 0, high = turns.size() - 1;
  bool fits = false;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const auto failed = attempt(without(asked, first, turns[middle]), fits);
    if (failed && failed->code != "context_length_exceeded") return failed;
    if (fits)
      high = middle;
    else
      low = middle + 1;
  }
  asked = without(asked, first, turns[low]);
  return attempt(asked, fits);
}

}  // namespace quire
