// lab/board/report.h - renders the leaderboard as a Markdown table and as one page of HTML, and
// adds results of other runs.
//
// Everything is rendered from the JSON alone, so published results can be rendered again.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"

namespace quire {

// Marks rows ("frontier": true) that no other of their track beats in both bytes and mean score,
// and names for the others one that does ("dominated_by"). "none" and "oracle" do not compete.
void mark_frontier(Json& result);

std::string board_markdown(const Json& result);
std::string board_html(const Json& result);  // self-contained: style, script and plots inside

// Adds the rows of another run. Refused unless it answered the same samples on the same model and
// says on what machine and with which build.
Result<Json> add_results(Json base, const Json& more);

}  // namespace quire
