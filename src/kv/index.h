// kv/index.h - the prefix index: which token prefixes exist, as a radix tree over blocks.
//
// A node stands for P tokens after its parent's tokens. (parent, change, tokens) identify a node;
// its chain key only helps to find it. Every hit compares tokens and parent, so a hash collision
// costs time but never gives a wrong block. Nodes hold no memory of their own; the cache keeps
// their blocks and leases in arrays by NodeId. One global hash table leads from key to node, with
// enough prefetching that a long prompt is matched at memory bandwidth, not latency. The children
// of a node that can serve form a sorted tree, for the longest common prefix within a block. Sized
// once: nothing here allocates after the constructor. Engine thread only.
//
//   PrefixIndex index({.node_capacity = 1 << 20, .tokens_per_block = 32});
//   const NodeId root = index.add_root();
//   std::size_t n = index.match(root, chain, path);          // nodes for the first n blocks
//   NodeId node = index.insert(path[n - 1], chain.keys[n], 0, &chain.tokens[n * P]);
//   index.expose(node);                                      // from now on longest_child sees it
//   PartialMatch m = index.longest_child(parent, 0, rest);   // shares most tokens with `rest`
#pragma once

#include <cstdint>
#include <span>

#include "kv/key.h"
#include "kv/lazy_array.h"
#include "kv/token.h"

namespace quire {

enum class NodeId : std::uint32_t {};
inline constexpr NodeId kNoNode = static_cast<NodeId>(UINT32_MAX);

struct IndexOptions {
  std::uint32_t node_capacity = 0;
  std::uint32_t tokens_per_block = 32;
};

// A prompt as the index sees it: whole blocks with their keys, and the tag of each block whose key
// has a change.
struct TokenChain {
  std::span<const BlockKey> keys;
  std::span<const TokenId> tokens;            // at least keys.size() * P
  std::span<const BlockChange> changes = {};  // ascending by block

  std::uint64_t change_at(std::uint32_t block) const;
};

struct PartialMatch {
  NodeId node = kNoNode;
  std::uint32_t tokens = 0;
};

class PrefixIndex {
 public:
  explicit PrefixIndex(const IndexOptions& options);

  // Roots have no tokens and no parent.
  NodeId add_root();
  void remove_root(NodeId root);  // childless

  // The longest run of nodes below `root` for the chain's first blocks; path[i] is the node of
  // block i. Nodes that cannot serve yet are matched too; the caller checks which blocks they hold.
  std::size_t match(NodeId root, const TokenChain& chain, std::span<NodeId> path) const;
  NodeId find(NodeId parent, const BlockKey& key, std::uint64_t change,
              const TokenId* tokens) const;
  NodeId find(const BlockKey& key) const;  // the first node of that key, for people

  // The node must not exist. kNoNode when the index is full: erase something first.
  NodeId insert(NodeId parent, const BlockKey& key, std::uint64_t change, const TokenId* tokens);
  void erase(NodeId node);  // childless, hidden

  // Exposed nodes take part in longest_child and for_each_child.
  void expose(NodeId node);
  void hide(NodeId node);
  bool exposed(NodeId node) const { return at(node).exposed; }
  PartialMatch longest_child(NodeId parent, std::uint64_t change,
                             std::span<const TokenId> tokens) const;

  NodeId parent(NodeId node) const { return static_cast<NodeId>(at(node).parent); }
  bool live(NodeId node) const { return raw(node) < end_ && at(node).live; }
  bool is_root(NodeId node) const { return at(node).parent == kNil; }
  std::uint32_t depth(NodeId node) const {
    return at(node).depth;
  }  // blocks from the root, this one included
  std::uint32_t children(NodeId node) const { return at(node).children; }
  std::uint64_t change(NodeId node) const { return at(node).change; }
  const BlockKey& key(NodeId node) const { return keys_[raw(node)]; }
  std::span<const TokenId> tokens(NodeId node) const {
    return {tokens_of(raw(node)), is_root(node) ? 0u : tokens_per_block_};
  }

  template <class F>
  void for_each_child(NodeId node, F&& f)
      const {  // exposed ones, by their tokens; f(NodeId) must not change the tree
    visit(at(node).child_root, f);
  }
  template <class F>
  void for_each(F&& f) const {  // every node, roots included, in no particular order
    for (std::uint32_t i = 0; i < end_; ++i)
      if (at(static_cast<NodeId>(i)).live) f(static_cast<NodeId>(i));
  }

  // Which groups have a block at the node. The index keeps these bits for the cache, in memory that
  // a match reads anyway.
  std::uint32_t present(NodeId node) const { return at(node).present; }
  void set_present(NodeId node, std::uint32_t groups) { at(node).present = groups; }

  std::uint32_t size() const { return size_; }  // without roots
  std::uint32_t capacity() const { return capacity_; }
  std::uint32_t tokens_per_block() const { return tokens_per_block_; }
  bool full() const { return free_ == kNil && end_ == capacity_; }

  // Recounts everything from the parents' side and from the children's; aborts on a contradiction.
  void check() const;

 private:
  static constexpr std::uint32_t kNil = UINT32_MAX;
  static std::uint32_t raw(NodeId n) { return static_cast<std::uint32_t>(n); }

  struct Node {
    std::uint64_t change = 0;
    std::uint32_t parent = kNil, depth = 0, children = 0;
    std::uint32_t child_root = kNil;          // sorted tree of exposed children
    std::uint32_t left = kNil, right = kNil;  // this node's place among its siblings
    std::uint32_t tag = 0;                    // of its key: its home in the hash table
    std::uint32_t next_free = kNil;
    std::uint32_t present = 0;
    bool live = false, exposed = false;
  };
  // A slot repeats what tells nodes apart, so that a match reads only slots and tokens. Four slots
  // make a cache line, filled from the front. An entry whose home line is full goes to the next
  // line with room. So a line that is not full ends a search, and nearly all searches end in the
  // first line.
  struct Slot {
    std::uint32_t tag, node;       // tag 0: empty
    std::uint32_t parent, change;  // its low half
  };
  static constexpr std::uint32_t kLine = 4;

  Node& at(NodeId n) { return nodes_[raw(n)]; }
  const Node& at(NodeId n) const { return nodes_[raw(n)]; }
  Node& at(std::uint32_t n) { return nodes_[n]; }
  const Node& at(std::uint32_t n) const { return nodes_[n]; }
  TokenId* tokens_of(std::uint32_t n) { return &tokens_[std::size_t{n} * tokens_per_block_]; }
  const TokenId* tokens_of(std::uint32_t n) const {
    return &tokens_[std::size_t{n} * tokens_per_block_];
  }
  static std::uint32_t tag_of(const BlockKey& key);
  std::uint32_t line_of(std::uint32_t tag) const { return tag & slot_mask_ & ~(kLine - 1); }
  std::uint32_t next_line(std::uint32_t line) const { return (line + kLine) & slot_mask_; }
  // Calls f(slot) for each slot of the tag until it returns true. Returns that slot, or kNil.
  template <class F>
  std::uint32_t search(std::uint32_t tag, F&& f) const;
  std::uint32_t take_node();
  bool same(const Slot& slot, std::uint32_t parent, std::uint64_t change,
            const TokenId* tokens) const;
  void vacate(std::uint32_t slot);

  // Sibling trees: treaps ordered by (change, tokens), heap-ordered by a hash of the node's number.
  int compare(std::uint64_t change, std::span<const TokenId> tokens, std::uint32_t node) const;
  std::uint32_t shared_tokens(std::uint64_t change, std::span<const TokenId> tokens,
                              std::uint32_t node) const;
  void split(std::uint32_t tree, std::uint32_t by, std::uint32_t& less, std::uint32_t& more);
  std::uint32_t join(std::uint32_t less, std::uint32_t more);
  template <class F>
  void visit(std::uint32_t tree, F& f) const {
    if (tree == kNil) return;
    visit(at(tree).left, f);
    f(static_cast<NodeId>(tree));
    visit(at(tree).right, f);
  }

  std::uint32_t tokens_per_block_, capacity_;
  std::uint32_t end_ = 0, free_ = kNil, size_ = 0;
  std::uint32_t slot_mask_;
  LazyArray<Node> nodes_;      // by NodeId, as all but the last
  LazyArray<TokenId> tokens_;  // tokens_per_block_ each
  LazyArray<BlockKey> keys_;
  LazyArray<Slot> slots_;
};

}  // namespace quire
