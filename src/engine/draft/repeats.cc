#include "engine/draft/repeats.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace quire {
namespace {

constexpr std::uint32_t kPlacesLookedAt = 16;
constexpr std::size_t kFirstHeads = 256;

}  // namespace

std::uint64_t Repeats::bucket(const TokenId* end) const {
  return hash64(end - least_, least_ * sizeof(TokenId)) & (heads_.size() - 1);
}

void Repeats::link(std::span<const TokenId> text, std::uint32_t end) {
  std::uint32_t& head = heads_[bucket(text.data() + end)];
  before_[end] = std::exchange(head, end);
}

void Repeats::read(std::span<const TokenId> text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  auto from = static_cast<std::uint32_t>(before_.size());
  before_.resize(size + 1);
  if (heads_.size() < size) {
    std::size_t heads = std::max(heads_.size(), kFirstHeads);
    while (heads < size) heads *= 2;
    heads_.assign(heads, 0);
    from = 0;
  }
  for (std::uint32_t end = std::max(from, least_); end <= size; ++end) link(text, end);
}

Repeat Repeats::find(std::span<const TokenId> text, std::span<const TokenId> tail) const {
  Repeat best;
  if (tail.size() < least_ || heads_.empty()) return best;
  const std::uint32_t size = static_cast<std::uint32_t>(text.size());
  std::uint32_t at = heads_[bucket(tail.data() + tail.size())];
  for (std::uint32_t looked = 0; at != 0 && looked < kPlacesLookedAt; at = before_[at], ++looked) {
    if (at >= size) continue;
    const std::uint32_t most = std::min({at, static_cast<std::uint32_t>(tail.size()), most_});
    std::uint32_t length = 0;
    while (length < most && text[at - 1 - length] == tail[tail.size() - 1 - length]) ++length;
    if (length >= least_ && length > best.length) best = {at, length};
    if (best.length == most_) break;
  }
  return best;
}

}  // namespace quire
