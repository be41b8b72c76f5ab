// kv/journal.h - what the cache decided lately, and why: a fixed ring of small records.
//
// Every admission, hit, miss, eviction, preemption and move writes one; `explain`, traces and the
// event stream read ranges. Records are numbered from 0 without gaps; old ones are overwritten.
// O(1), no allocation after the start.
//
//   journal.add({.time = now, .request = 42, .bytes = 737280, .reason = Reason::evicted_capacity});
//   for (const JournalRecord& r : journal.since(seen)) ...
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "kv/reason.h"

namespace quire {

struct JournalRecord {
  Nanoseconds time = 0;
  std::uint64_t request = 0;  // or sequence; 0 when nobody's
  std::uint64_t key = 0;      // prefix of the block key concerned, or 0
  std::uint64_t bytes = 0;
  // By reason: other request, offset moved from. Of stored and evicted blocks: the NodeId in the upper
  // half; in the lower one, of stored blocks, the groups that the node has now.
  std::uint64_t extra = 0;
  std::uint32_t block = 0;  // block index in the sequence, or in the pool
  std::uint32_t tokens = 0;
  std::uint16_t group = 0;
  Reason reason = Reason::none;
};

class Journal {
 public:
  explicit Journal(std::uint32_t records_max);  // rounded up to a power of two

  std::uint64_t add(const JournalRecord& record) {  // its number
    ring_[next_ & mask_] = record;
    ++counts_[static_cast<std::size_t>(record.reason)];
    return next_++;
  }

  std::uint64_t first() const {
    return next_ > ring_.size() ? next_ - ring_.size() : 0;
  }  // oldest still here
  std::uint64_t next() const { return next_; }
  const JournalRecord& at(std::uint64_t number) const {
    CHECK(number >= first() && number < next_);
    return ring_[number & mask_];
  }
  std::uint64_t count(Reason reason) const {
    return counts_[static_cast<std::size_t>(reason)];
  }  // ever

  // Records from `number` on that are still here; from() > number tells of a gap. Good until the
  // next add().
  class Range {
   public:
    struct Iterator {
      const Journal* journal;
      std::uint64_t number;
      const JournalRecord& operator*() const { return journal->at(number); }
      Iterator& operator++() {
        ++number;
        return *this;
      }
      bool operator==(const Iterator& o) const { return number == o.number; }
    };
    Range(const Journal* journal, std::uint64_t from) : journal_(journal), from_(from) {}
    std::uint64_t from() const { return from_; }
    Iterator begin() const { return {journal_, from_}; }
    Iterator end() const { return {journal_, journal_->next()}; }

   private:
    const Journal* journal_;
    std::uint64_t from_;
  };
  Range since(std::uint64_t number) const {
    return {this, number < first() ? first() : number > next_ ? next_ : number};
  }

 private:
  std::vector<JournalRecord> ring_;
  std::uint64_t mask_, next_ = 0;
  std::uint64_t counts_[kReasonCount] = {};
};

}  // namespace quire
