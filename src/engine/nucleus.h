// engine/nucleus.h - the likely part of a distribution, found without sorting all of it: what
// top-k, top-p and min-p leave.
//
// Values are logits less the largest, over temperature: the best is 0, weights are exp(value). A
// Sampler has one; it allocates nothing after construction.
//
//   Nucleus nucleus(vector, vocabulary);
//   nucleus.keep_best(scaled, 40);                 // top-k, or
//   nucleus.keep_mass(scaled, 0.95 * total);       // top-p
//   nucleus.keep_above(std::log(0.05f));           // then min-p
//   nucleus.tokens()[i], nucleus.values()[i];      // an order that depends on the values alone
//
// Of a distribution whose unlikely tokens are missing (kernels/draw.h), `of` says which ones the
// values belong to, in ascending order.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "kernels/vector.h"

namespace quire {

class Nucleus {
 public:
  Nucleus(const VectorKernels& vector, std::uint32_t vocabulary);

  // The `count` best tokens, best first; of equals the lowest ids first. All, where there are
  // fewer.
  void keep_best(std::span<const float> values, std::size_t count,
                 std::span<const TokenId> of = {});
  // The fewest best tokens that together weigh at least `mass`; of equals the lowest ids. All that
  // weigh anything, where they weigh less.
  void keep_mass(std::span<const float> scaled, double mass, std::span<const TokenId> of = {});
  // The tokens whose value is at least `floor`, of all or of those kept before.
  void keep_above(std::span<const float> scaled, float floor, std::span<const TokenId> of = {}) {
    collect(scaled, floor, of);
  }
  void keep_above(float floor);

  std::span<const TokenId> tokens() const { return {tokens_.data(), count_}; }
  std::span<const float> values() const { return {values_.data(), count_}; }

 private:
  static constexpr std::size_t kBins = 256;

  void collect(std::span<const float> scaled, float floor, std::span<const TokenId> of);
  void order_by_bins();
  double weigh(std::size_t from, std::size_t to) const;
  void sort(std::size_t from, std::size_t to);
  void cut(std::size_t from, std::size_t to, double mass);

  const VectorKernels& vector_;
  std::size_t count_ = 0;  // of those that follow
  std::vector<float> values_;
  std::vector<TokenId> tokens_;
  std::vector<float> other_values_;  // scratch, as large
  std::vector<TokenId> other_tokens_;
  std::vector<std::uint32_t> bins_;               // by candidate, or an order of them
  std::array<std::uint32_t, kBins + 1> first_{};  // of each bin, after order_by_bins
};

}  // namespace quire
