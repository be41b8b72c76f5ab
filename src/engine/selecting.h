// engine/selecting.h - the program of a request whose answers choose the pages they read
// (kv.select: quest). It holds bounds of the sequence's keys and counts what was read.
//
// Rows of the prompt read everything. The blocks of an answer are private. Once an answer has
// begun, its sequence can only be parked, not recomputed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/program.h"
#include "engine/runtime.h"
#include "kv/select/policy.h"

namespace quire {

class Selecting final : public Program {
 public:
  Selecting(const Runtime& runtime, const SelectPolicy& policy, std::uint32_t prompt_length,
            RootId root);

  std::uint32_t prompt_length() const { return prompt_length_; }
  std::unique_ptr<Program> fork() const override { return std::make_unique<Selecting>(*this); }
  void open(SequenceOptions& options) const override;
  // Blocks behind the prompt are computed from a part of their chain.
  void attached(Stepper&, Sequence& s, const SequenceOptions&) override {
    s.limit_purity(prompt_length_);
  }
  std::uint32_t rows_max(std::uint32_t past) const override;
  std::uint32_t part_end(std::uint32_t first, std::uint32_t end) const override {
    return first >= prompt_length_ ? first + 1 : std::min(end, prompt_length_);
  }
  std::optional<PageReads> reads(std::uint32_t first) override;
  Yield yield(const Sequence& s) const override {
    return s.length() > prompt_length_ ? Yield::park : Yield::recompute;
  }
  void reset(Sequence&) override { bounds_.cut(0); }
  Status truncate(std::uint32_t length) override;
  void report(ProgramReport& report) const override;

  // Bytes of the cache that answers read, bounds included. The block that is being filled does not
  // count.
  std::uint64_t bytes_read() const { return counts_.read * page_bytes_ + bounds_read(); }
  std::uint64_t bytes_whole() const { return counts_.whole * page_bytes_; }
  std::uint64_t bytes() const { return bounds_.bytes(); }  // held besides the cache

 private:
  std::uint64_t bounds_read() const {
    return counts_.read < counts_.whole ? counts_.whole * 2 * bounds_.dim() * sizeof(float) : 0;
  }

  std::uint32_t prompt_length_, tokens_per_block_, pages_max_;
  bool exact_;
  std::uint64_t page_bytes_;
  PageBounds bounds_;
  PageReadCounts counts_;
};

}  // namespace quire
