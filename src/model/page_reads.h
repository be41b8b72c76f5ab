// model/page_reads.h - a sequence that reads only some of its pages, and how it chooses them in
// each layer, once the layer's queries are known (kernels/select.h).
//
// A step has one PageReads for each part that chooses (StepPlan::reads): a row of an answer, which
// chooses by the bounds of its lanes' pages; or the rows of one block of a prompt, which choose as
// a sparse geometry says. A part always reads its own block. Attention sees the chosen pages as a
// lane.
//
//   PageReadCounts counts;
//   PageReads reads{.bounds = &bounds, .pages_max = 16, .counts = &counts};
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/select.h"

namespace quire {

// Answers that choose read everything in the layers before this one: queries there say too little
// (Quest).
inline constexpr std::uint32_t kDenseLayers = 2;

// Lane pages before a row's own block: those that were read, and all there were.
struct PageReadCounts {
  std::uint64_t read = 0, whole = 0;
};

struct PageReads {
  PageBounds* bounds =
      nullptr;                  // of the group's lanes; grows as pages are sealed. Null: a prompt's
  std::uint32_t pages_max = 0;  // that a row reads in each lane
  PageReadCounts* counts = nullptr;
  // For tests: the pages that each lane of the group chose.
  std::vector<std::vector<std::uint32_t>>* chosen = nullptr;
};

}  // namespace quire
