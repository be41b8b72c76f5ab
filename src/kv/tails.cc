// Texts that went on: what came after the last tokens of a sequence where they are cached.
#include "kv/tails.h"

#include <algorithm>

#include "base/hash.h"
#include "base/random.h"
#include "kv/core.h"

namespace quire {
namespace {

constexpr std::uint32_t kMatchMax = 24;     // tokens that are compared
constexpr std::uint32_t kChildrenMax = 16;  // of a node, among which the way on is chosen

std::uint64_t tail_digest(std::uint64_t realm, const TokenId* end) {
  return mix64(realm ^ hash64(end - TextTails::kRun, TextTails::kRun * sizeof(TokenId)));
}

}  // namespace

void PrefixStore::remember_tails(NodeId n) {
  if (!tails_) return;
  const std::span<const TokenId> own = index_.tokens(n);
  tail_.assign(own.begin(), own.end());
  std::uint32_t before = 0;  // tokens of the blocks above it, as many as a run needs
  for (NodeId m = index_.parent(n); before + 1 < TextTails::kRun && !index_.is_root(m);
       m = index_.parent(m)) {
    const std::span<const TokenId> above = index_.tokens(m);
    const auto count =
        std::min(TextTails::kRun - 1 - before, static_cast<std::uint32_t>(above.size()));
    tail_.insert(tail_.begin(), above.end() - count, above.end());
    before += count;
  }
  const std::uint64_t realm = nodes_[raw(n)].realm;
  for (std::size_t end = TextTails::kRun; end <= tail_.size(); ++end)
    if (end > before)
      tails_->put(tail_digest(realm, tail_.data() + end),
                  {n, static_cast<std::uint32_t>(end - before - 1)});
}

// How many of the last tokens of `known` end at this place.
std::uint32_t PrefixStore::match_back(TextTails::Place place,
                                      std::span<const TokenId> known) const {
  const auto most = std::min<std::uint32_t>(kMatchMax, static_cast<std::uint32_t>(known.size()));
  std::uint32_t same = 0;
  for (NodeId n = place.node; !index_.is_root(n); n = index_.parent(n)) {
    const std::span<const TokenId> tokens = index_.tokens(n);
    for (std::size_t i = n == place.node ? place.token + 1 : tokens.size(); i-- > 0; ++same)
      if (same == most || tokens[i] != known[known.size() - 1 - same]) return same;
  }
  return same;
}

// The block after this one that was served most often; none: it is unknown, or there are too many.
NodeId PrefixStore::way_on(NodeId n) const {
  NodeId best = kNoNode;
  if (index_.children(n) > kChildrenMax) return best;
  index_.for_each_child(n, [&](NodeId child) {
    if (index_.change(child) == 0 && ready(child) &&
        (best == kNoNode || nodes_[raw(child)].hits > nodes_[raw(best)].hits))
      best = child;
  });
  return best;
}

std::uint32_t PrefixStore::continue_text(std::uint64_t realm, std::span<const TokenId> known,
                                         std::uint32_t count, std::vector<TokenId>& tokens) const {
  if (!tails_ || known.size() < TextTails::kRun) return 0;
  const auto place = tails_->at(tail_digest(realm, known.data() + known.size()));
  if (!place || !index_.exposed(place->node) || !ready(place->node) ||
      nodes_[raw(place->node)].realm != realm)
    return 0;
  const std::uint32_t same = match_back(*place, known);
  if (same < TextTails::kRun) return 0;
  NodeId n = place->node;
  for (std::size_t at = place->token + 1; count > 0; --count, ++at) {
    if (at == index_.tokens(n).size()) {
      n = way_on(n);
      if (n == kNoNode) break;
      at = 0;
    }
    tokens.push_back(index_.tokens(n)[at]);
  }
  return same;
}

void KvCache::remember_tails() { core_->store.remember_tails(); }

std::uint32_t KvCache::continue_text(const Sequence& s, std::span<const TokenId> known,
                                     std::uint32_t count, std::vector<TokenId>& tokens) const {
  const PrefixStore& store = core_->store;
  return store.continue_text(store.realm(s.state_->cursor.root, s.state_->chain().change_at(0)),
                             known, count, tokens);
}

}  // namespace quire
