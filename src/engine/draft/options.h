// engine/draft/options.h - which drafts are made, and how long: --speculative-config.
//
//   TRY(DraftOptions o, parse_draft_options(R"({"method": "ngram", "num_speculative_tokens": 8})"));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/result.h"

namespace quire {

class DraftSource;
struct DraftScene;

struct DraftOptions {
  std::uint32_t sources = 0;      // bit i: entry i of draft_sources(); 0: no drafts
  std::uint32_t tokens_max = 15;  // of one draft
  bool adaptive = true;           // false: every draft is as long as it may be (for tests)
  // Prompt lookup: the shortest repetition that counts, and the longest that is looked at.
  std::uint32_t lookup_min = 3, lookup_max = 24;
  // For tests and the simulator: a source more, or the only one.
  std::function<std::unique_ptr<DraftSource>(const DraftScene&)> source = {};

  bool on() const { return sources != 0 || source; }
};

// vLLM's keys: method (a name of draft_sources(), "suffix", "auto" or "none"), num_speculative_tokens,
// prompt_lookup_min, prompt_lookup_max.
Result<DraftOptions> parse_draft_options(std::string_view json);

}  // namespace quire
