// model/page_reads.h - one sequence of a step that reads only some of its pages, and how it chooses
// them in each layer, once its queries are there (kernels/select.h).
//
// The engine makes one per part that chooses by itself (StepRows::reads): a row of an answer, by the
// bounds of its lanes' pages; or the rows of one block of a prompt, as a sparse geometry says. Its own
// block is read in any case, and attention sees the rest as a lane that kept these pages only.
//
//   PageReadCounts counts;
//   PageReads reads{.bounds = &bounds, .pages_max = 16, .counts = &counts};
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/select.h"

namespace quire {

// Layers before this one read everything where answers choose: their queries say too little (Quest).
inline constexpr std::uint32_t kDenseLayers = 2;

// Lane pages before a row's own block: read, and what there was.
struct PageReadCounts {
  std::uint64_t read = 0, whole = 0;
};

struct PageReads {
  PageBounds* bounds =
      nullptr;                  // of the group's lanes; grows as pages are sealed. Null: a prompt's
  std::uint32_t pages_max = 0;  // that a row reads in each lane
  PageReadCounts* counts = nullptr;
  // What each lane chose, by lane of the group; for who wants to see it.
  std::vector<std::vector<std::uint32_t>>* chosen = nullptr;
};

}  // namespace quire
