// lab/speed/decode_batch.h - measures decoding speed at a depth, with the cache stored in one way
// or in several ways in turn. For `quire bench` and `quire bench retain`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/retain.h"
#include "engine/runtime.h"
#include "engine/stepper.h"

namespace quire::lab {

// Sequences that are stored in one way, all at the same depth, sharing nothing.
class DecodeBatch {
 public:
  // Sequence i has adapters[i % their number], if there are any.
  using AdapterSets = std::vector<std::shared_ptr<const AdapterSet>>;
  DecodeBatch(Runtime& runtime, std::uint32_t depth, std::uint32_t count, std::uint32_t width,
              AdapterSets adapters = {})
      : r_(runtime),
        stepper_(runtime),
        depth_(depth),
        count_(count),
        width_(width),
        adapters_(std::move(adapters)) {}

  // The first sequence's context is encoded from `like`, or computed; the others get copies.
  Status fill(const StoragePolicy& way, const DecodeBatch* like);
  // As above, but a retention policy keeps only a part of the context.
  Status fill_kept(const StoragePolicy& way, std::shared_ptr<const RetainPolicy> policy);

  // Decodes at most `count` tokens with each of the first `width` sequences, then rolls them back.
  // Returns tokens per second.
  Result<double> run(std::uint32_t steps, std::uint32_t width);
  std::uint64_t bytes() const { return r_.cache().bytes(sequences_[0]); }  // that the first holds
  double prefill_s() const { return prefill_s_; }    // of the first, where it was computed
  double compress_s() const { return compress_s_; }  // time of its policy, during and after prefill

 private:
  Result<Sequence> open(const StoragePolicy& way, SequenceOptions options);

  Runtime& r_;
  Stepper stepper_;
  const std::uint32_t depth_, count_, width_;
  const AdapterSets adapters_;
  std::vector<Sequence> sequences_;
  std::vector<Retaining> retains_;  // by sequence, or none
  double prefill_s_ = 0, compress_s_ = 0;
};

struct DecodeQuestion {
  std::vector<StoragePolicy> ways;  // the first is what the others are compared with
  std::uint32_t depth, count, batch, repeat;
  // Compared with the first way, too: that way with these, one after the other.
  DecodeBatch::AdapterSets adapters = {};
};

struct DecodeScore {
  std::string format;
  std::vector<double> rates;   // tokens per second, of each repetition
  std::vector<double> ratios;  // to the first way, measured right before; none for itself
  std::uint64_t kv_bytes;      // that a step reads
};

// One score per way. Only the first way computes its context; the others encode it from the first.
// The cost of decoding does not depend on the numbers.
Result<std::vector<DecodeScore>> bench_decode(Runtime& runtime, const DecodeQuestion& question);

// Tokens that share no prefix with those of another salt, so that the prefix cache cannot help.
std::vector<TokenId> filler(const Runtime& runtime, std::uint32_t count, std::uint64_t salt);
Status read_all(Runtime& runtime, Sequence& s, std::span<const TokenId> prompt);

}  // namespace quire::lab
