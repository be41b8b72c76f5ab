#include "sim/reference.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace quire {

void Reference::learn(const BlockKey& key, std::uint64_t parent, std::span<const TokenId> tokens,
                      std::uint64_t change) {
  const auto [it, fresh] = known_.try_emplace(key.prefix());
  if (fresh) {
    it->second = {parent, change, {tokens.begin(), tokens.end()}, 0};
    children_[parent].push_back(key.prefix());
    return;
  }
  // Equal keys must mean equal provenance.
  CHECK(it->second.parent == parent && it->second.change == change &&
        std::ranges::equal(it->second.tokens, tokens));
}

void Reference::stored(std::uint64_t key, std::uint32_t groups) {
  const auto it = known_.find(key);
  CHECK(it != known_.end());
  CHECK((it->second.groups & ~groups) == 0);  // storing takes nothing away
  blocks_ += static_cast<std::uint64_t>(std::popcount(groups) - std::popcount(it->second.groups));
  it->second.groups = groups;
}

void Reference::evicted(std::uint64_t key, std::uint32_t group) {
  const auto it = known_.find(key);
  CHECK(it != known_.end() && it->second.groups >> group & 1);
  it->second.groups &= ~(1u << group);
  --blocks_;
}

std::uint32_t Reference::groups_of(std::uint64_t key) const {
  const auto it = known_.find(key);
  return it == known_.end() ? 0 : it->second.groups;
}

bool Reference::has_children(std::uint64_t key) const {
  const auto it = children_.find(key);
  return it != children_.end() && std::ranges::any_of(it->second, [&](std::uint64_t child) {
           return groups_of(child) != 0;
         });
}

Reference::Served Reference::served(const Geometry& geometry, std::uint64_t root,
                                    std::span<const BlockKey> keys, std::span<const TokenId> tokens,
                                    std::span<const std::uint64_t> changes,
                                    std::uint32_t limit) const {
  const std::uint32_t p = tokens_per_block_;
  std::uint32_t chain = 0;
  bool state = false;
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
    const GroupKind kind = geometry.groups[g].kind;
    if (kind == GroupKind::full || kind == GroupKind::latent) chain |= 1u << g;
    if (kind == GroupKind::state) state = true;
  }
  std::uint32_t chained = 0;  // blocks whose chain groups are all there, from the first on
  while (chained < keys.size() && (groups_of(keys[chained].prefix()) & chain) == chain) ++chained;

  // Whether every group can serve `whole` blocks and `rest` tokens more, those from the block
  // `tail`.
  const auto fits = [&](std::uint32_t whole, std::uint32_t rest, std::uint64_t tail) {
    const std::uint32_t length = whole * p + rest;
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const LayerGroup& group = geometry.groups[g];
      if (group.kind == GroupKind::state && length > 0 &&
          !(groups_of(keys[whole - 1].prefix()) >> g & 1))
        return false;
      if (group.kind == GroupKind::recent)
        for (std::uint32_t b = 0; b < whole; ++b)
          if ((b < group.sink_blocks || b + group.recent_blocks >= whole) &&
              !(groups_of(keys[b].prefix()) >> g & 1))
            return false;
      if (group.kind != GroupKind::window) continue;
      for (std::uint32_t t = length + 1 > group.window ? length + 1 - group.window : 0; t < length;
           ++t)
        if (!(groups_of(t / p < whole ? keys[t / p].prefix() : tail) >> g & 1)) return false;
    }
    return true;
  };
  const auto fits_in_part = [&](std::uint32_t whole, std::uint32_t rest) {
    const auto siblings = children_.find(whole == 0 ? root : keys[whole - 1].prefix());
    if (state || !geometry.exact() || siblings == children_.end()) return false;
    return std::ranges::any_of(siblings->second, [&](std::uint64_t child) {
      const Block& b = known_.at(child);
      return b.groups != 0 && (b.groups & chain) == chain && b.change == changes[whole] &&
             std::equal(b.tokens.begin(), b.tokens.begin() + rest, tokens.begin() + whole * p) &&
             fits(whole, rest, child);
    });
  };
  // A block without a key yet can still be recognized by its tokens, even whole.
  Served s{0, 0};
  for (std::uint32_t length = std::min(limit, (chained + 1) * p); length > 0; --length) {
    const std::uint32_t whole = std::min(length / p, chained), rest = length - whole * p;
    if (rest > 0 ? !fits_in_part(whole, rest) : !fits(whole, 0, 0)) continue;
    s.best = std::max(s.best, length);
    if (rest > 0) continue;
    s.whole = length;
    break;
  }
  return s;
}

}  // namespace quire
