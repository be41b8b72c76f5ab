#include "server/prompt_parts.h"

#include <fmt/core.h>

#include <algorithm>

namespace quire {
namespace {

constexpr std::size_t kSegmentsMax = 512;  // the log of requests remembers them

// Where tokens end in the text they came from. If a tokenizer adds or normalizes bytes, this is off
// by a byte or two.
class TokenEnds {
 public:
  TokenEnds(const Tokenizer& tokenizer, std::span<const TokenId> tokens, std::size_t text_bytes) {
    std::size_t total = 0;
    ends_.reserve(tokens.size());
    for (const TokenId t : tokens) ends_.push_back(total += tokenizer.piece(t).size());
    added_ = total > text_bytes ? total - text_bytes : 0;
  }
  // Tokens that lie wholly before this byte.
  std::uint32_t before(std::size_t byte) const {
    return static_cast<std::uint32_t>(std::ranges::upper_bound(ends_, byte + added_) -
                                      ends_.begin());
  }

 private:
  std::vector<std::size_t> ends_;
  std::size_t added_ = 0;  // a space in front, by some tokenizers
};

// Where parts of the client's conversation end in the text of the prompt.
class PartEnds {
 public:
  PartEnds(const GenerationRequest& asked, const RenderedConversation& c)
      : asked_(asked),
        c_(c),
        moved_(c.messages.size() - asked.messages.size()),
        extents_(where_shown(c.messages.size(), c.parts)) {
    // Up to here, what comes after a message's content and before the next one's belongs to it.
    std::size_t next = SIZE_MAX;
    limits_.resize(extents_.size());
    for (std::size_t i = extents_.size(); i-- > 0;) {
      limits_[i] = next;
      if (extents_[i].shown) next = extents_[i].begin;
    }
    std::size_t at = 0;
    for (const Segment& part : c.parts) {
      at += part.text.size();
      if (part.from_data && !part.text.empty()) data_ends_.push_back(at);
    }
    for (std::size_t i = 0; i < asked.messages.size(); ++i)
      starts_.push_back(start_of(content(asked.messages[i]), content(c.messages[i + moved_])));
    tools_ = find_tools();
  }

  // 0: it is not shown.
  std::size_t end_of(std::size_t message, std::size_t end) const {
    if (message == ConversationPart::kTools) return tools_;
    const std::size_t i = message + moved_;
    if (i >= extents_.size()) return 0;
    if (end == ConversationPart::kWhole) return last_data_before(limits_[i]);
    if (!extents_[i].shown) return 0;
    // Counted from the end: templates remove blanks, and more often in front.
    const std::size_t shown = content(c_.messages[i]).size();
    const std::size_t tail = shown - std::min(shown, starts_[message] + end);
    return extents_[i].end - std::min(extents_[i].end - extents_[i].begin, tail);
  }

 private:
  static const std::string& content(const Json& message) {
    static const std::string none;
    const auto at = message.find("content");
    return at != message.end() && at->is_string() ? at->get_ref<const std::string&>() : none;
  }

  // Where the client's text begins in the one that was made of it.
  static std::size_t start_of(const std::string& own, const std::string& made) {
    if (made.starts_with(own)) return 0;
    if (made.ends_with(own)) return made.size() - own.size();
    const std::size_t at = made.rfind(own);
    return at == made.npos ? 0 : at;
  }

  std::size_t last_data_before(std::size_t limit) const {
    const auto at = std::ranges::upper_bound(data_ends_, limit);
    return at == data_ends_.begin() ? 0 : *std::prev(at);
  }

  std::size_t find_tools() const {
    if (asked_.tools.is_null()) return 0;
    if (moved_ > 0 && extents_[0].shown) return extents_[0].end;
    if (starts_[0] > 0) return end_of(0, 0);  // they stand before the client's own text
    // A template that knows tools shows them before the first turn. Nothing else there is data that is
    // no message's content.
    std::size_t turn = 0;
    while (turn < c_.messages.size() &&
           (c_.messages[turn]["role"] == "system" || !extents_[turn].shown))
      ++turn;
    const std::size_t limit = turn < c_.messages.size() ? extents_[turn].begin : SIZE_MAX;
    std::size_t at = 0, end = 0;
    for (const Segment& part : c_.parts) {
      at += part.text.size();
      if (at > limit) break;
      if (part.from_data && part.message < 0 && !part.text.empty()) end = at;
    }
    return end;
  }

  const GenerationRequest& asked_;
  const RenderedConversation& c_;
  const std::size_t moved_;  // tools that became a message of their own stand before the client's
  std::vector<Extent> extents_;
  std::vector<std::size_t> limits_, data_ends_, starts_;
  std::size_t tools_ = 0;
};

// What a client that names no parts is taken to mean.
std::vector<ConversationPart> plain_parts(const GenerationRequest& asked) {
  std::vector<ConversationPart> parts;
  if (!asked.tools.is_null()) parts.push_back({"tools", ConversationPart::kTools});
  std::size_t systems = 0;
  for (std::size_t i = 0; i < asked.messages.size(); ++i) {
    const Json& m = asked.messages[i];
    if (m["role"] == "system")  // tools may follow it
      parts.push_back({fmt::format("system[{}]", systems++), i,
                       m["content"].get_ref<const std::string&>().size()});
    else
      parts.push_back({fmt::format("messages[{}]", i), i});
  }
  return parts;
}

}  // namespace

std::vector<Extent> where_shown(std::size_t messages, std::span<const Segment> parts) {
  std::vector<Extent> extents(messages);
  std::size_t at = 0;
  for (const Segment& part : parts) {
    if (part.message >= 0 && static_cast<std::size_t>(part.message) < extents.size()) {
      Extent& e = extents[static_cast<std::size_t>(part.message)];
      if (!e.shown) e = {.begin = at, .shown = true};
      e.end = at + part.text.size();
    }
    at += part.text.size();
  }
  return extents;
}

void name_parts(const GenerationRequest& asked, const RenderedConversation& c,
                const Tokenizer& tokenizer, Prompt& prompt) {
  if (asked.messages.empty()) return;
  std::size_t bytes = 0;
  for (const Segment& part : c.parts) bytes += part.text.size();
  const TokenEnds tokens(tokenizer, prompt.tokens, bytes);
  const PartEnds ends(asked, c);

  const std::vector<ConversationPart> plain =
      asked.parts.empty() ? plain_parts(asked) : std::vector<ConversationPart>();
  std::vector<std::pair<std::size_t, const ConversationPart*>> placed;
  for (const ConversationPart& p : asked.parts.empty() ? plain : asked.parts)
    if (const std::size_t end = ends.end_of(p.message, p.end); end > 0)
      placed.emplace_back(end, &p);
  // Templates may show the tools after the system prompt.
  std::ranges::stable_sort(placed, {}, [](const auto& p) { return p.first; });
  // Neighbours of a very long conversation share a segment, which has the name of the last.
  const std::size_t step = (placed.size() + kSegmentsMax - 1) / kSegmentsMax;
  std::uint32_t begin = 0;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if ((i + 1) % step != 0 && i + 1 < placed.size()) continue;
    const std::uint32_t end = std::max(begin, tokens.before(placed[i].first));
    prompt.segments.push_back({placed[i].second->name, begin, end});
    begin = end;
  }
  if (!prompt.segments.empty())
    prompt.segments.back().end = static_cast<std::uint32_t>(prompt.tokens.size());

  // A breakpoint covers everything that the client put before it.
  std::uint32_t covered = 0;
  for (const CacheBreakpoint& b : asked.breakpoints) {
    covered = std::max(covered, tokens.before(ends.end_of(b.message, b.end)));
    if (covered >= std::max(asked.kv.breakpoint_tokens_min, 1u))
      prompt.breakpoints.push_back({covered, b.ttl});
  }
}

}  // namespace quire
