// kv/evict/ladder.h - ids in ascending order of a key, almost: a list in rungs.
//
// Most ids arrive with the largest key so far (just used) and go to the end. Some arrive late with
// an old key: a parent becomes evictable when its last child has left. These go to the end of the
// rung that their key belongs to, found by bisection. A rung covers a range of keys. While there
// are unused rungs, every new largest (or smallest) key opens one, and the order is exact except
// for keys that fall between two known ones. After that it is exact to about one part in half the
// rungs. Inserting takes O(log rungs), everything else O(1); nothing allocates.
//
//   LinkedIds<PlainLink> lists(ids, 4096);
//   Ladder ladder(lists, /*first_list=*/0, /*rungs=*/4096);
//   ladder.insert(id, last_use);
//   std::uint32_t oldest = ladder.front();
//   ladder.erase(oldest);
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kv/evict/list.h"

namespace quire {

template <class Lists>
class Ladder {
 public:
  Ladder(Lists& lists, std::uint32_t first_list, std::uint32_t rungs_max)
      : lists_(&lists), first_list_(first_list), starts_(rungs_max) {
    CHECK(rungs_max >= 2);
  }

  bool empty() const { return size_ == 0; }
  std::uint64_t size() const { return size_; }

  void insert(std::uint32_t id, std::uint64_t key) {
    ++size_;
    if (count_ == 0) {
      open(key);
    } else if (key >= start(count_ - 1)) {
      if (key > start(count_ - 1) && in_last_ >= width_) open(key);
    } else if (key < start(0)) {
      if (count_ < starts_.size()) {  // a new first rung
        head_ = (head_ + starts_.size() - 1) % starts_.size();
        ++count_;
      }
      start(0) = key;
      lists_->push_front(list(0), id);
      return;
    } else {
      std::uint32_t low = 0, high = count_ - 1;  // start(low) <= key < start(high)
      while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        (start(middle) <= key ? low : high) = middle;
      }
      lists_->push_back(list(low), id);
      return;
    }
    ++in_last_;
    lists_->push_back(list(count_ - 1), id);
  }

  void erase(std::uint32_t id) {
    --size_;
    lists_->erase(id);
  }

  std::uint32_t front() {
    DCHECK(!empty());
    while (lists_->empty(list(0))) {
      head_ = (head_ + 1) % starts_.size();
      --count_;
    }
    const std::uint32_t id = lists_->front(list(0));
    __builtin_prefetch(&(*lists_)[(*lists_)[id].next]);  // will be the front soon
    return id;
  }

  // f(list, least key) for each rung that holds something.
  template <class F>
  void for_each_rung(F&& f) {
    for (std::uint32_t rung = 0; rung < count_; ++rung)
      if (!lists_->empty(list(rung))) f(list(rung), start(rung));
  }

 private:
  std::uint32_t place(std::uint32_t rung) const {
    return static_cast<std::uint32_t>((head_ + rung) % starts_.size());
  }
  std::uint64_t& start(std::uint32_t rung) { return starts_[place(rung)]; }
  std::uint32_t list(std::uint32_t rung) const { return first_list_ + place(rung); }

  void open(std::uint64_t key) {
    if (size_ == 1) count_ = 0;  // all that is left of earlier rungs is their starts
    if (count_ == starts_.size()) halve();
    if (count_ < starts_.size() / 4 && width_ > 1) width_ /= 2;
    start(count_++) = key;
    in_last_ = 0;
  }

  // Joins rungs in pairs; from now on a rung takes twice as many.
  void halve() {
    for (std::uint32_t rung = 0; rung < count_; ++rung) {
      if (rung % 2 == 0) start(rung / 2) = start(rung);
      if (rung != rung / 2) lists_->append_all(list(rung / 2), list(rung));
    }
    count_ = (count_ + 1) / 2;
    width_ *= 2;
  }

  Lists* lists_;
  std::uint32_t first_list_;
  std::vector<std::uint64_t> starts_;  // a ring: the smallest key of each rung
  std::size_t head_ = 0;
  std::uint32_t count_ = 0;
  std::uint64_t width_ = 1, in_last_ = 0, size_ = 0;
};

}  // namespace quire
