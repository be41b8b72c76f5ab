// lab/board/row_text.h - how the pages name and order the rows of a result. Used by
// lab/board/report.cc and lab/board/page.cc.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace quire {

struct BoardTrack {
  const char *id, *title, *about;
};
inline constexpr BoardTrack kBoardTracks[] = {
    {"blind", "Compressed before the question was known",
     "One snapshot of the context serves every question."},
    {"aware", "Compressed with the question in view",
     "The result is private to one question; not comparable with the other table."},
};

std::string row_name(const Json& row);  // "snapkv 20 %"
// The kind of a row: "anchor", "format", "evict", "merge", "select", "reuse", "mixed" or "other".
std::string row_kind(const Json& row);
// Rows of a track, best mean first; rows without a mean last.
std::vector<const Json*> ranked_rows(const Json& result, const std::string& track);
// Cells that passed their gate.
std::vector<std::string> open_cells(const Json& result);

}  // namespace quire
