// Texts: blocks found by their own tokens, behind any prefix.
#include <algorithm>

#include "base/hash.h"
#include "base/random.h"
#include "kv/core.h"

namespace quire {
namespace {

constexpr std::uint32_t kTextsLookedAt = 64;  // nodes, for one block of a text

std::uint64_t text_digest(std::uint64_t realm, std::span<const TokenId> tokens) {
  return mix64(realm ^ hash64(tokens.data(), tokens.size_bytes()));
}

}  // namespace

std::uint64_t PrefixStore::realm(NodeId n, std::uint64_t change) const {
  const std::uint64_t above = nodes_[raw(n)].realm;
  return change == 0 ? above : mix64(above ^ change);
}

std::uint64_t PrefixStore::digest(NodeId n) const {
  return text_digest(nodes_[raw(n)].realm, index_.tokens(n));
}

void PrefixStore::expose(NodeId n) {
  if (index_.exposed(n)) return;
  index_.expose(n);
  contents_.add(n, digest(n));
  remember_tails(n);
}

void PrefixStore::hide(NodeId n) {
  if (!index_.exposed(n)) return;
  index_.hide(n);
  contents_.remove(n, digest(n));
}

NodeId PrefixStore::find_text(std::uint64_t realm, std::span<const TokenId> tokens) const {
  NodeId found = kNoNode;
  std::uint32_t looked = 0;
  for (NodeId n = contents_.first(text_digest(realm, tokens));
       n != kNoNode && looked < kTextsLookedAt; n = contents_.next(n), ++looked)
    if (nodes_[raw(n)].realm == realm && ready(n) && std::ranges::equal(index_.tokens(n), tokens) &&
        (found == kNoNode || index_.key(n) < index_.key(found)))
      found = n;
  return found;
}

std::optional<TextPlace> KvCache::find_text(const Sequence& s, std::span<const TokenId> tokens,
                                            const std::optional<TextPlace>& after) const {
  const PrefixStore& store = core_->store;
  const PrefixIndex& index = store.index();
  if (after) {
    const PartialMatch next = index.longest_child(after->node, 0, tokens);
    if (next.tokens == tokens.size() && store.ready(next.node))
      return TextPlace{next.node, after->end + next.tokens, true};
  }
  const std::uint64_t realm = store.realm(s.state_->cursor.root, s.state_->chain().change_at(0));
  const NodeId n = store.find_text(realm, tokens);
  if (n == kNoNode) return {};
  return TextPlace{n, index.depth(n) * index.tokens_per_block(), false};
}

CachedText KvCache::text(const TextPlace& place) const {
  const PrefixIndex& index = core_->store.index();
  CachedText text;
  text.tokens.resize(place.end);
  text.keys.resize(index.depth(place.node));
  std::size_t block = text.keys.size();
  for (NodeId n = place.node; block-- > 0; n = index.parent(n)) {
    text.keys[block] = index.key(n);
    std::ranges::copy(index.tokens(n), &text.tokens[block * index.tokens_per_block()]);
  }
  return text;
}

}  // namespace quire
