// engine/draft/tally.h - what became of drafts, counted: of one answer or of all of them, by source.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire {

inline constexpr std::size_t kDraftSourcesMax = 4;

struct DraftTally {
  static constexpr std::size_t kPositions = 16;
  std::uint64_t drafts = 0, tokens = 0, accepted = 0;
  std::array<std::uint64_t, kPositions>
      accepted_at{};  // by place in the draft; the last: and behind
};
using DraftTallies = std::array<DraftTally, kDraftSourcesMax>;

}  // namespace quire
