// kv/content_table.h - nodes of the prefix index by their own tokens, whatever prefix they follow.
// PrefixStore uses it to find a text behind another prefix without looking at every node
// (engine/blend.h).
//
// A digest of the tokens leads to a list of nodes, the newest first. Nodes with other digests may
// be in the same list, so the caller compares tokens. Sized once; adding and removing allocate
// nothing. Engine thread only.
//
//   table.add(node, digest);
//   for (NodeId n = table.first(digest); n != kNoNode; n = table.next(n)) ...
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kv/index.h"

namespace quire {

class ContentTable {
 public:
  explicit ContentTable(std::uint32_t node_capacity)
      : heads_(std::bit_ceil(std::max(16u, node_capacity))), links_(node_capacity) {}

  NodeId first(std::uint64_t digest) const { return node(heads_[list(digest)]); }
  NodeId next(NodeId n) const { return node(links_[raw(n)].next); }

  void add(NodeId n, std::uint64_t digest) {
    std::uint32_t& head = heads_[list(digest)];
    links_[raw(n)] = {.next = head, .previous = 0};
    if (head != 0) links_[head - 1].previous = raw(n) + 1;
    head = raw(n) + 1;
    ++size_;
  }
  void remove(NodeId n, std::uint64_t digest) {
    const Link gone = links_[raw(n)];
    (gone.previous != 0 ? links_[gone.previous - 1].next : heads_[list(digest)]) = gone.next;
    if (gone.next != 0) links_[gone.next - 1].previous = gone.previous;
    --size_;
  }
  std::uint32_t size() const { return size_; }

 private:
  struct Link {
    std::uint32_t next, previous;  // a node's number + 1; 0: none
  };
  static std::uint32_t raw(NodeId n) { return static_cast<std::uint32_t>(n); }
  static NodeId node(std::uint32_t link) { return link == 0 ? kNoNode : NodeId{link - 1}; }
  std::size_t list(std::uint64_t digest) const { return digest & (heads_.size() - 1); }

  LazyArray<std::uint32_t> heads_;  // as in Link
  LazyArray<Link> links_;           // by NodeId
  std::uint32_t size_ = 0;
};

}  // namespace quire
