// kv/evict/list.h - doubly linked lists over dense ids, several in one pair of arrays.
//
// An id is in at most one of the lists. A list is a ring with an end node of its own, so taking an
// id out needs not know which list it is in.
//
//   LinkedIds lists(entries_max, 101);
//   lists.push_back(7, id);
//   if (!lists.empty(7)) oldest = lists.front(7);
//   lists.erase(id);
#pragma once

#include <cstdint>

#include "kv/lazy_array.h"

namespace quire {

class LinkedIds {
 public:
  LinkedIds(std::uint32_t ids, std::uint32_t list_count)
      : ids_(ids), links_(std::size_t{ids} + list_count) {
    for (std::uint32_t l = 0; l < list_count; ++l) links_[ids_ + l] = {ids_ + l, ids_ + l};
  }

  bool empty(std::uint32_t list) const { return links_[ids_ + list].next == ids_ + list; }
  std::uint32_t front(std::uint32_t list) const {
    DCHECK(!empty(list));
    return links_[ids_ + list].next;
  }
  void push_back(std::uint32_t list, std::uint32_t id) { insert_before(ids_ + list, id); }
  void push_front(std::uint32_t list, std::uint32_t id) {
    insert_before(links_[ids_ + list].next, id);
  }
  void erase(std::uint32_t id) {
    const Link l = links_[id];
    links_[l.previous].next = l.next;
    links_[l.next].previous = l.previous;
  }
  // Puts all of `from` behind the last of `to`; `from` is empty afterwards.
  void append_all(std::uint32_t to, std::uint32_t from) {
    if (empty(from)) return;
    const std::uint32_t t = ids_ + to, f = ids_ + from;
    const std::uint32_t first = links_[f].next, last = links_[f].previous, end = links_[t].previous;
    links_[end].next = first;
    links_[first].previous = end;
    links_[last].next = t;
    links_[t].previous = last;
    links_[f] = {f, f};
  }

 private:
  struct Link {
    std::uint32_t next, previous;
  };
  void insert_before(std::uint32_t at, std::uint32_t id) {
    const std::uint32_t previous = links_[at].previous;
    links_[id] = {at, previous};
    links_[previous].next = id;
    links_[at].previous = id;
  }

  std::uint32_t ids_;
  LazyArray<Link> links_;
};

}  // namespace quire
