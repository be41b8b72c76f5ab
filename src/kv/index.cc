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
  return tag != 0 ? tag : 1;
}

template <class F>
inline std::uint32_t PrefixIndex::search(std::uint32_t tag, F&& f) const {
  for (std::uint32_t line = line_of(tag);; line = next_line(line)) {
    const Slot* s = &slots_[line];
    // Which of the four slots matches cannot be predicted, so there is no branch on it.
    std::uint32_t hits = 0;
    for (std::uint32_t i = 0; i < kLine; ++i) hits |= std::uint32_t{s[i].tag == tag} << i;
    for (; hits != 0; hits &= hits - 1)
      if (const auto i = static_cast<std::uint32_t>(std::countr_zero(hits)); f(s[i]))
        return line + i;
    if (s[kLine - 1].tag == 0) return kNil;
  }
}

std::uint32_t PrefixIndex::take_node() {
  if (free_ == kNil) return end_ < capacity_ ? end_++ : kNil;
  const std::uint32_t n = free_;
  free_ = at(n).next_free;
  return n;
}

NodeId PrefixIndex::add_root() {
  const std::uint32_t n = take_node();
  if (n == kNil) return kNoNode;
  at(n) = {.live = true};
  return static_cast<NodeId>(n);
}

void PrefixIndex::remove_root(NodeId root) {
  Node& n = at(root);
  CHECK(n.live && n.parent == kNil && n.children == 0);
  n = {.next_free = free_};
  free_ = raw(root);
}

inline bool PrefixIndex::same(const Slot& slot, std::uint32_t parent, std::uint64_t change,
                              const TokenId* tokens) const {
  if (slot.parent != parent || slot.change != static_cast<std::uint32_t>(change)) return false;
  if (change != 0 && at(slot.node).change != change) return false;
  if (planted(Bug::skip_token_compare)) return true;
  const TokenId* own = tokens_of(slot.node);
  TokenId difference = 0;  // branch-free: nearly always they are equal
  for (std::uint32_t i = 0; i < tokens_per_block_; ++i) difference |= own[i] ^ tokens[i];
  return difference == 0;
}

NodeId PrefixIndex::find(NodeId parent, const BlockKey& key, std::uint64_t change,
                         const TokenId* tokens) const {
  const std::uint32_t slot =
      search(tag_of(key), [&](const Slot& s) { return same(s, raw(parent), change, tokens); });
  return slot == kNil ? kNoNode : static_cast<NodeId>(slots_[slot].node);
}

NodeId PrefixIndex::find(const BlockKey& key) const {
  const std::uint32_t slot =
      search(tag_of(key), [&](const Slot& s) { return keys_[s.node] == key; });
  return slot == kNil ? kNoNode : static_cast<NodeId>(slots_[slot].node);
}

namespace {
// Prefetches into L2, which can have many more misses under way than L1. Always inlined: g++ takes
// a function that only prefetches for one without effect and drops the call.
[[gnu::always_inline]] inline void bring(const void* line) { __builtin_prefetch(line, 0, 2); }
}  // namespace

std::size_t PrefixIndex::match(NodeId root, const TokenChain& chain, std::span<NodeId> path) const {
  // Two waves of prefetches run ahead of the comparison. The first fetches hash slots; the second
  // finds the block's slot there and fetches the tokens of the node that it names.
  constexpr std::size_t kSlotsAhead = 64, kTokensAhead = 16;
  const std::size_t count = std::min(chain.keys.size(), path.size());
  const std::size_t token_bytes = tokens_per_block_ * sizeof(TokenId);
  std::uint32_t found[kTokensAhead];  // slots, a ring by block
  for (std::size_t i = 0; i < std::min(kSlotsAhead, count); ++i)
    bring(&slots_[line_of(tag_of(chain.keys[i]))]);

  std::size_t next_change = 0;
  NodeId at_node = root;
  for (std::size_t ahead = 0; ahead < count + kTokensAhead; ++ahead) {
    if (ahead >= kTokensAhead) {
      const std::size_t i = ahead - kTokensAhead;
      const std::uint32_t slot = found[i % kTokensAhead];
      if (slot == kNil) return i;
      const TokenId* tokens = &chain.tokens[i * tokens_per_block_];
      std::uint64_t change = 0;
      if (next_change < chain.changes.size() && chain.changes[next_change].block == i)
        change = chain.changes[next_change++].tag;
      at_node = same(slots_[slot], raw(at_node), change, tokens)
                    ? static_cast<NodeId>(slots_[slot].node)
                    : find(at_node, chain.keys[i], change, tokens);
      if (at_node == kNoNode) return i;
      path[i] = at_node;
    }
    if (ahead >= count) continue;
    if (ahead + kSlotsAhead < count)
      bring(&slots_[line_of(tag_of(chain.keys[ahead + kSlotsAhead]))]);
    const std::uint32_t slot = search(tag_of(chain.keys[ahead]), [](const Slot&) { return true; });
    found[ahead % kTokensAhead] = slot;
    if (slot == kNil) continue;
    const auto* tokens = reinterpret_cast<const std::byte*>(tokens_of(slots_[slot].node));
    for (std::size_t i = 0; i < token_bytes; i += 64) bring(tokens + i);
  }
  return count;
}

NodeId PrefixIndex::insert(NodeId parent, const BlockKey& key, std::uint64_t change,
                           const TokenId* tokens) {
  DCHECK(find(parent, key, change, tokens) == kNoNode);
  const std::uint32_t n = take_node();
  if (n == kNil) return kNoNode;
  const std::uint32_t tag = tag_of(key);
  at(n) = {.change = change,
           .parent = raw(parent),
           .depth = at(parent).depth + 1,
           .tag = tag,
           .live = true};
  std::memcpy(tokens_of(n), tokens, tokens_per_block_ * sizeof(TokenId));
  keys_[n] = key;
  std::uint32_t i = line_of(tag);
  while (slots_[i].tag != 0) i = (i + 1) & slot_mask_;
  slots_[i] = {tag, n, raw(parent), static_cast<std::uint32_t>(change)};
  ++at(parent).children;
  ++size_;
  return static_cast<NodeId>(n);
}

void PrefixIndex::erase(NodeId node) {
  Node& n = at(node);
  CHECK(n.live && n.parent != kNil && n.children == 0 && !n.exposed);
  vacate(search(n.tag, [&](const Slot& s) { return s.node == raw(node); }));
  --at(n.parent).children;
  --size_;
  n = {.next_free = free_};
  free_ = raw(node);
}

void PrefixIndex::vacate(std::uint32_t hole) {
  CHECK(hole != kNil);
  // There are no tombstones: an entry that lies in a later line, because its home line was full,
  // moves back when there is room.
  std::uint32_t line = hole & ~(kLine - 1);
  for (std::uint32_t from = line; slots_[from + kLine - 1].tag != 0;) {
    if (planted(Bug::lose_hash_entry)) break;
    from = next_line(from);
    for (std::uint32_t i = from; i < from + kLine && slots_[i].tag != 0; ++i) {
      const std::uint32_t from_home = (from - line_of(slots_[i].tag)) & slot_mask_;
      if (from_home < ((from - line) & slot_mask_)) continue;
      slots_[hole] = slots_[i];
      hole = i;
      line = from;
      break;
    }
  }
  std::uint32_t last = line + kLine - 1;
  while (slots_[last].tag == 0) --last;
  slots_[hole] = slots_[last];
  slots_[last] = {};
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
  // In sorted order, the child that shares most tokens is next to where `tokens` would be inserted.
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
  for (std::size_t i = 0; i <= slot_mask_; ++i) in_table += slots_[i].tag != 0;
  CHECK(nodes == size_ && in_table == size_ && children == size_ && linked == exposed_nodes);
}

}  // namespace quire
