// engine/selecting.h - one sequence whose answers read the pages they choose (Quest): bounds of its
// keys, and what was read.
//
// Made for a sequence with such a policy and handed to every step of it (StepItem::select). Rows of
// the prompt read everything. A copy goes with a fork. What an answer computes is private, and once
// it has begun the sequence can only be parked.
#pragma once

#include <cstdint>

#include "engine/runtime.h"
#include "kv/select/policy.h"

namespace quire {

class Selecting {
 public:
  Selecting(const Runtime& runtime, const SelectPolicy& policy, std::uint32_t prompt_length,
            RootId root);

  std::uint32_t prompt_length() const { return prompt_length_; }
  PageReads reads();

  // Of the cache, by answers, blocks that were being filled left out; bounds included.
  std::uint64_t bytes_read() const { return counts_.read * page_bytes_ + bounds_read(); }
  std::uint64_t bytes_whole() const { return counts_.whole * page_bytes_; }
  std::uint64_t bytes() const { return bounds_.bytes(); }  // held besides the cache
  // The sequence was rolled back to so many tokens.
  void cut(std::uint32_t length) { bounds_.cut(length / tokens_per_block_); }

 private:
  std::uint64_t bounds_read() const {
    return counts_.read < counts_.whole ? counts_.whole * 2 * bounds_.dim() * sizeof(float) : 0;
  }

  std::uint32_t prompt_length_, tokens_per_block_, pages_max_;
  std::uint64_t page_bytes_;
  PageBounds bounds_;
  PageReadCounts counts_;
};

}  // namespace quire
