#include "lab/board/row_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/board/way.h"

namespace quire {

std::string row_name(const Json& row) {
  const double share = row["share"];
  const std::string method = row["method"];
  return share == 1 || share == 0 ? method : fmt::format("{} {:g} %", method, 100 * share);
}

std::string row_kind(const Json& row) {
  const std::string method = row["method"];
  for (const char* anchor : {"full", "none", "random", "oracle"})
    if (method == anchor) return "anchor";
  const auto parsed = parse_way(method);
  if (!parsed.ok()) return "other";
  const Way& way = parsed.value();
  if (way.blends) return "reuse";
  if (!way.selects.empty()) return "select";
  if (way.merger) return "merge";
  if (way.method && way.format) return "mixed";
  return way.method ? "evict" : "format";
}

std::vector<const Json*> ranked_rows(const Json& result, const std::string& track) {
  std::vector<const Json*> rows;
  for (const Json& row : result["rows"])
    if (row["track"] == track) rows.push_back(&row);
  const auto mean = [](const Json* r) {
    return (*r)["mean"].is_number() ? (*r)["mean"].get<double>() : -1e9;
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const Json* a, const Json* b) { return mean(a) > mean(b); });
  return rows;
}

std::vector<std::string> open_cells(const Json& result) {
  std::vector<std::string> cells;
  for (const Json& cell : result["cells"])
    if (cell["gate"].get<bool>()) cells.push_back(cell["name"]);
  return cells;
}

}  // namespace quire
