// kv/evict/list.h - doubly linked lists over dense ids, several in one array of nodes.
//
// The links lie inside the caller's Node (members `next` and `previous`), beside what is read
// together with them, so that walking a list costs one cache line per id. An id is in at most one
// of the lists. A list is a ring with an end node of its own, so taking an id out needs not know
// which list it is in.
//
//   LinkedIds<Node> lists(entries_max, 101);
//   lists.push_back(7, id);
//   if (!lists.empty(7)) oldest = lists.front(7);
//   lists.erase(id);
#pragma once

#include <cstdint>

#include "kv/lazy_array.h"

namespace quire {

struct PlainLink {
  std::uint32_t next, previous;
};

template <class Node>
class LinkedIds {
 public:
  LinkedIds(std::uint32_t ids, std::uint32_t list_count, LazyPages pages = LazyPages::small)
      : ids_(ids), nodes_(std::size_t{ids} + list_count, pages) {
    for (std::uint32_t l = 0; l < list_count; ++l)
      nodes_[ids_ + l].next = nodes_[ids_ + l].previous = ids_ + l;
  }

  std::uint32_t ids() const { return ids_; }
  Node& operator[](std::uint32_t id) { return nodes_[id]; }
  const Node& operator[](std::uint32_t id) const { return nodes_[id]; }

  bool empty(std::uint32_t list) const { return nodes_[ids_ + list].next == ids_ + list; }
  std::uint32_t front(std::uint32_t list) const {
    DCHECK(!empty(list));
    return nodes_[ids_ + list].next;
  }
  void push_back(std::uint32_t list, std::uint32_t id) { insert_before(ids_ + list, id); }
  void push_front(std::uint32_t list, std::uint32_t id) {
    insert_before(nodes_[ids_ + list].next, id);
  }
  void erase(std::uint32_t id) {
    const std::uint32_t next = nodes_[id].next, previous = nodes_[id].previous;
    nodes_[previous].next = next;
    nodes_[next].previous = previous;
  }
  // Puts all of `from` behind the last of `to`; `from` is empty afterwards.
  void append_all(std::uint32_t to, std::uint32_t from) {
    if (empty(from)) return;
    Node &t = nodes_[ids_ + to], &f = nodes_[ids_ + from];
    nodes_[t.previous].next = f.next;
    nodes_[f.next].previous = t.previous;
    nodes_[f.previous].next = ids_ + to;
    t.previous = f.previous;
    f.next = f.previous = ids_ + from;
  }

 private:
  void insert_before(std::uint32_t at, std::uint32_t id) {
    const std::uint32_t previous = nodes_[at].previous;
    nodes_[id].next = at;
    nodes_[id].previous = previous;
    nodes_[previous].next = id;
    nodes_[at].previous = id;
  }

  std::uint32_t ids_;
  LazyArray<Node> nodes_;
};

}  // namespace quire
