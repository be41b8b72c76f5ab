#include "kv/index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/random.h"
#include "kv/planted.h"

namespace quire {

std::uint64_t TokenChain::change_at(std::uint32_t block) const {
  for (const BlockChange& c : changes)
    if (c.block == block) return c.tag;
  return 0;
}

PrefixIndex::PrefixIndex(const IndexOptions& options)
    : tokens_per_block_(options.tokens_per_block),
      capacity_(options.node_capacity),
      slot_mask_(std::bit_ceil(std::max(16u, options.node_capacity * 2)) - 1),
      nodes_(options.node_capacity),
      tokens_(std::size_t{options.node_capacity} * options.tokens_per_block, LazyPages::huge),
      keys_(options.node_capacity),
      slots_(std::size_t{slot_mask_} + 1, LazyPages::huge) {
  CHECK(capacity_ > 0 && capacity_ < (1u << 30) && tokens_per_block_ > 0);
}

inline std::uint32_t PrefixIndex::tag_of(const BlockKey& key) {
  std::uint32_t tag;
  std::memcpy(&tag, &key, sizeof tag);
  return tag;
}

std::uint32_t PrefixIndex::take_slot() {
  if (free_ == kNil) return end_ < capacity_ ? end_++ : kNil;
  const std::uint32_t n = free_;
  free_ = at(n).next_free;
  return n;
}

NodeId PrefixIndex::add_root() {
  const std::uint32_t n = take_slot();
  if (n == kNil) return kNoNode;
  at(n) = {.live = true};
  return static_cast<NodeId>(n);
}

inline bool PrefixIndex::same(const Slot& slot, std::uint32_t parent, std::uint64_t change,
                              const TokenId* tokens) const {
  const std::uint32_t n = slot.node_plus_1 - 1;
  if (slot.parent != parent || slot.change != static_cast<std::uint32_t>(change)) return false;
  if (change != 0 && at(n).change != change) return false;
  if (planted(Bug::skip_token_compare)) return true;
  const TokenId* own = tokens_of(n);
  TokenId difference = 0;  // branch-free: nearly always they are equal
  for (std::uint32_t i = 0; i < tokens_per_block_; ++i) difference |= own[i] ^ tokens[i];
  return difference == 0;
}

inline void PrefixIndex::prefetch_tokens(std::uint32_t node) const {
  const auto* line = reinterpret_cast<const std::byte*>(tokens_of(node));
  for (std::size_t i = 0; i < tokens_per_block_ * sizeof(TokenId); i += 64)
    __builtin_prefetch(line + i);
}

inline NodeId PrefixIndex::locate(NodeId parent, const BlockKey& key, std::uint64_t change,
                                  const TokenId* tokens) const {
  const std::uint32_t tag = tag_of(key);
  for (std::uint32_t i = tag & slot_mask_; slots_[i].node_plus_1 != 0; i = (i + 1) & slot_mask_) {
    if (slots_[i].tag == tag && same(slots_[i], raw(parent), change, tokens))
      return static_cast<NodeId>(slots_[i].node_plus_1 - 1);
  }
  return kNoNode;
}

NodeId PrefixIndex::find(NodeId parent, const BlockKey& key, std::uint64_t change,
                         const TokenId* tokens) const {
  return locate(parent, key, change, tokens);
}

NodeId PrefixIndex::find(const BlockKey& key) const {
  const std::uint32_t tag = tag_of(key);
  for (std::uint32_t i = tag & slot_mask_; slots_[i].node_plus_1 != 0; i = (i + 1) & slot_mask_) {
    const std::uint32_t n = slots_[i].node_plus_1 - 1;
    if (slots_[i].tag == tag && keys_[n] == key) return static_cast<NodeId>(n);
  }
  return kNoNode;
}

std::size_t PrefixIndex::match(NodeId root, const TokenChain& chain, std::span<NodeId> path) const {
  // Two waves run ahead of the comparison: one brings in hash slots, the next the tokens of the
  // nodes they name.
  constexpr std::size_t kSlotsAhead = 32, kNodesAhead = 16;
  const std::size_t count = std::min(chain.keys.size(), path.size());
  const auto prefetch_slot = [&](std::size_t i) {
    __builtin_prefetch(&slots_[tag_of(chain.keys[i]) & slot_mask_]);
  };
  const auto prefetch_candidate = [&](std::size_t i) {
    const Slot s = slots_[tag_of(chain.keys[i]) & slot_mask_];
    if (s.node_plus_1 != 0) prefetch_tokens(s.node_plus_1 - 1);
  };
  for (std::size_t i = 0; i < std::min(kSlotsAhead, count); ++i) prefetch_slot(i);
  for (std::size_t i = 0; i < std::min(kNodesAhead, count); ++i) prefetch_candidate(i);

  std::size_t next_change = 0;
  NodeId at_node = root;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kSlotsAhead < count) prefetch_slot(i + kSlotsAhead);
    if (i + kNodesAhead < count) prefetch_candidate(i + kNodesAhead);
    std::uint64_t change = 0;
    if (next_change < chain.changes.size() && chain.changes[next_change].block == i)
      change = chain.changes[next_change++].tag;
    at_node = locate(at_node, chain.keys[i], change, &chain.tokens[i * tokens_per_block_]);
    if (at_node == kNoNode) return i;
    path[i] = at_node;
  }
  return count;
}

NodeId PrefixIndex::insert(NodeId parent, const BlockKey& key, std::uint64_t change,
                           const TokenId* tokens) {
  DCHECK(find(parent, key, change, tokens) == kNoNode);
  const std::uint32_t n = take_slot();
  if (n == kNil) return kNoNode;
  const std::uint32_t tag = tag_of(key);
  at(n) = {.change = change,
           .parent = raw(parent),
           .depth = at(parent).depth + 1,
           .tag = tag,
           .live = true};
  std::memcpy(tokens_of(n), tokens, tokens_per_block_ * sizeof(TokenId));
  keys_[n] = key;
  std::uint32_t i = tag & slot_mask_;
  while (slots_[i].node_plus_1 != 0) i = (i + 1) & slot_mask_;
  slots_[i] = {tag, n + 1, raw(parent), static_cast<std::uint32_t>(change)};
  ++at(parent).children;
  ++size_;
  return static_cast<NodeId>(n);
}

void PrefixIndex::erase(NodeId node) {
  Node& n = at(node);
  CHECK(n.live && n.parent != kNil && n.children == 0 && !n.exposed);
  std::uint32_t i = n.tag & slot_mask_;
  while (slots_[i].node_plus_1 != raw(node) + 1) {
    CHECK(slots_[i].node_plus_1 != 0);
    i = (i + 1) & slot_mask_;
  }
  // Linear probing without tombstones: pull back whatever the hole would cut off from its home.
  for (std::uint32_t j = (i + 1) & slot_mask_; slots_[j].node_plus_1 != 0;
       j = (j + 1) & slot_mask_) {
    const std::uint32_t from_home = (j - slots_[j].tag) & slot_mask_;
    if (planted(Bug::lose_hash_entry)) break;
    if (from_home >= ((j - i) & slot_mask_)) {
      slots_[i] = slots_[j];
      i = j;
    }
  }
  slots_[i] = {};
  --at(n.parent).children;
  --size_;
  n = {.next_free = free_};
  free_ = raw(node);
}

int PrefixIndex::compare(std::uint64_t change, std::span<const TokenId> tokens,
                         std::uint32_t node) const {
  const Node& n = at(node);
  if (change != n.change) return change < n.change ? -1 : 1;
  const TokenId* other = tokens_of(node);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] != other[i]) return tokens[i] < other[i] ? -1 : 1;
  return 0;
}

std::uint32_t PrefixIndex::shared_tokens(std::uint64_t change, std::span<const TokenId> tokens,
                                         std::uint32_t node) const {
  if (at(node).change != change) return 0;
  const TokenId* other = tokens_of(node);
  return static_cast<std::uint32_t>(std::mismatch(tokens.begin(), tokens.end(), other).first -
                                    tokens.begin());
}

namespace {
bool above(std::uint32_t a, std::uint32_t b) { return mix64(a) > mix64(b); }
}  // namespace

void PrefixIndex::split(std::uint32_t tree, std::uint32_t by, std::uint32_t& less,
                        std::uint32_t& more) {
  if (tree == kNil) {
    less = more = kNil;
    return;
  }
  const std::span<const TokenId> tokens(tokens_of(by), tokens_per_block_);
  if (compare(at(by).change, tokens, tree) < 0) {
    more = tree;
    std::uint32_t rest;
    split(at(tree).left, by, less, rest);
    at(tree).left = rest;
  } else {
    less = tree;
    std::uint32_t rest;
    split(at(tree).right, by, rest, more);
    at(tree).right = rest;
  }
}

std::uint32_t PrefixIndex::join(std::uint32_t less, std::uint32_t more) {
  if (less == kNil) return more;
  if (more == kNil) return less;
  if (above(less, more)) {
    at(less).right = join(at(less).right, more);
    return less;
  }
  at(more).left = join(less, at(more).left);
  return more;
}

void PrefixIndex::expose(NodeId node) {
  Node& n = at(node);
  if (n.exposed) return;
  n.exposed = true;
  const std::span<const TokenId> tokens(tokens_of(raw(node)), tokens_per_block_);
  std::uint32_t* place = &at(n.parent).child_root;
  while (*place != kNil && above(*place, raw(node)))
    place = compare(n.change, tokens, *place) < 0 ? &at(*place).left : &at(*place).right;
  std::uint32_t less, more;
  split(*place, raw(node), less, more);
  n.left = less;
  n.right = more;
  *place = raw(node);
}

void PrefixIndex::hide(NodeId node) {
  Node& n = at(node);
  if (!n.exposed) return;
  n.exposed = false;
  const std::span<const TokenId> tokens(tokens_of(raw(node)), tokens_per_block_);
  std::uint32_t* place = &at(n.parent).child_root;
  while (*place != raw(node)) {
    CHECK(*place != kNil);
    place = compare(n.change, tokens, *place) < 0 ? &at(*place).left : &at(*place).right;
  }
  *place = join(n.left, n.right);
  n.left = n.right = kNil;
}

PartialMatch PrefixIndex::longest_child(NodeId parent, std::uint64_t change,
                                        std::span<const TokenId> tokens) const {
  // In sorted order the child that shares most is a neighbour of where `tokens` would stand.
  tokens = tokens.first(std::min<std::size_t>(tokens.size(), tokens_per_block_));
  PartialMatch best;
  for (std::uint32_t n = at(parent).child_root; n != kNil;) {
    const std::uint32_t shared = shared_tokens(change, tokens, n);
    if (shared > best.tokens) best = {static_cast<NodeId>(n), shared};
    const int side = compare(change, tokens, n);
    if (side == 0) break;
    n = side < 0 ? at(n).left : at(n).right;
  }
  return best;
}

void PrefixIndex::check() const {
  std::uint32_t nodes = 0, exposed_nodes = 0, linked = 0, in_table = 0;
  std::uint64_t children = 0;
  for_each([&](NodeId node) {
    const Node& n = at(node);
    children += n.children;
    std::uint32_t below = 0;
    NodeId before = kNoNode;
    for_each_child(node, [&](NodeId child) {
      CHECK(at(child).live && at(child).exposed && at(child).parent == raw(node));
      if (before != kNoNode) CHECK(compare(change(before), tokens(before), raw(child)) < 0);
      before = child;
      ++below;
    });
    CHECK(below <= n.children);
    linked += below;
    if (n.parent == kNil) return;
    ++nodes;
    exposed_nodes += n.exposed;
    CHECK(at(n.parent).live && n.depth == at(n.parent).depth + 1);
    CHECK(find(static_cast<NodeId>(n.parent), keys_[raw(node)], n.change, tokens_of(raw(node))) ==
          node);
  });
  for (std::size_t i = 0; i <= slot_mask_; ++i) in_table += slots_[i].node_plus_1 != 0;
  CHECK(nodes == size_ && in_table == size_ && children == size_ && linked == exposed_nodes);
}

}  // namespace quire
