// lab/formats/quality.h - how ways of storing the cache change a model's predictions, on given
// text.
//
// Each way reads the text beside the reference, in the same steps of one runtime, and every
// position is compared. `quire eval formats` prints the result; the probe (probe.h) chooses by it.
//
//   TRY(auto scores, compare_storage(runtime, {.reference = f16, .ways = {int8, mixed}}, tokens));
//   scores[0].kl_mean;   // KL(reference || way), nats per token
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/runtime.h"

namespace quire {

struct QualityQuestion {
  StoragePolicy reference;
  std::vector<StoragePolicy> ways;
  std::uint32_t window = 2048;  // tokens read from an empty cache, again and again
  std::uint32_t skip = 0;       // positions of each window that do not count
  std::function<void(std::uint64_t done)> progress = {};  // tokens
};

struct Quality {
  double kl_mean = 0, kl_99 = 0;  // 99 % of positions have less than kl_99
  double same_top = 0;            // share of positions whose likeliest token is the same
  double perplexity = 0, perplexity_reference = 0;
  std::uint64_t positions = 0;
};

Result<std::vector<Quality>> compare_storage(Runtime& runtime, const QualityQuestion& question,
                                             std::span<const TokenId> tokens);

}  // namespace quire
