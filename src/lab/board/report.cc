#include "lab/board/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lab/board/row_text.h"

namespace quire {
namespace {

std::string score_text(const Json& row, const std::string& cell) {
  const Json& scores = row["scores"];
  if (!scores.contains(cell) || !scores[cell].contains("normalized")) return "n/a";
  const Json& s = scores[cell];
  const double half = (s["high"].get<double>() - s["low"].get<double>()) / 2;
  return fmt::format("{:.2f} ± {:.2f}", s["normalized"].get<double>(), half);
}

std::string number(const Json& x, const char* form) {
  return x.is_number() ? fmt::format(fmt::runtime(form), x.get<double>()) : "n/a";
}

}  // namespace

void mark_frontier(Json& result) {
  // "none" is not a method, and "oracle" knows what no method can.
  const auto competes = [](const Json& row) {
    return row["mean"].is_number() && row["method"] != "none" && row["method"] != "oracle";
  };
  for (Json& row : result["rows"]) {
    row.erase("frontier");
    row.erase("dominated_by");
    if (!competes(row)) continue;
    const Json* better = nullptr;
    for (const Json& other : result["rows"]) {
      if (!competes(other) || other["track"] != row["track"]) continue;
      const bool no_worse =
          other["bytes_per_token"] <= row["bytes_per_token"] && other["mean"] >= row["mean"];
      const bool better_somewhere =
          other["bytes_per_token"] < row["bytes_per_token"] || other["mean"] > row["mean"];
      if (no_worse && better_somewhere && (!better || other["mean"] > (*better)["mean"]))
        better = &other;
    }
    row["frontier"] = better == nullptr;
    if (better) row["dominated_by"] = row_name(*better);
  }
}

std::string board_markdown(const Json& result) {
  const std::vector<std::string> cells = open_cells(result);
  std::string out;
  for (const BoardTrack& track : kBoardTracks) {
    const std::vector<const Json*> rows = ranked_rows(result, track.id);
    if (rows.empty()) continue;
    out += fmt::format("## {}\n\n{}\n\n| method | bytes/token | peak | mean | worst | KL |",
                       track.title, track.about);
    for (const std::string& c : cells) out += ' ' + c + " |";
    out += " compress, % of prefill | tokens/s |\n|---|---:|---:|---:|---:|---:|";
    for (std::size_t i = 0; i < cells.size() + 2; ++i) out += "---:|";
    out += '\n';
    for (const Json* r : rows) {
      const bool best = r->value("frontier", false);
      out += fmt::format("| {}{}{} | {} | {} | {} | {} | {} |", best ? "**" : "", row_name(*r),
                         best ? "**" : "", number((*r)["bytes_per_token"], "{:.0f}"),
                         number(r->value("bytes_peak", Json()), "{:.0f}"),
                         number((*r)["mean"], "{:.2f}"), number((*r)["worst"], "{:.2f}"),
                         number((*r)["kl"], "{:.4f}"));
      for (const std::string& c : cells) out += ' ' + score_text(*r, c) + " |";
      out += fmt::format(" {} | {} |\n",
                         number(100 * (*r)["prefill_overhead"].get<double>(), "{:.1f}"),
                         number(r->value("decode_tps", Json()), "{:.0f}"));
    }
    out += '\n';
  }
  for (const Json& cell : result["cells"])
    if (!cell["gate"].get<bool>())
      out += fmt::format("{} is n/a: {}.\n", cell["name"].get<std::string>(),
                         cell["why"].get<std::string>());
  out += fmt::format("\nManifest {}.\n", result["manifest_sha256"].get<std::string>());
  return out;
}

namespace {

// The fields of a row that the pages read; rows of other programs may have more.
Status check_row(const Json& row) {
  constexpr std::pair<const char*, bool (Json::*)() const noexcept> kFields[] = {
      {"method", &Json::is_string}, {"share", &Json::is_number},
      {"track", &Json::is_string},  {"bytes_per_token", &Json::is_number},
      {"scores", &Json::is_object}, {"prefill_overhead", &Json::is_number}};
  const auto wrong = [&](const std::string& what) {
    return Error{Code::invalid,
                 fmt::format("a row to add has no {}: {}", what, row.dump().substr(0, 200))};
  };
  if (!row.is_object()) return wrong("fields");
  for (const auto& [name, is] : kFields)
    if (!row.contains(name) || !(row[name].*is)())
      return wrong(std::string("usable '") + name + '\'');
  if (std::ranges::none_of(kBoardTracks, [&](const BoardTrack& t) { return row["track"] == t.id; }))
    return wrong("track that there is (blind or aware)");
  for (const char* name : {"mean", "worst", "kl"})
    if (!row.contains(name) || !(row[name].is_number() || row[name].is_null()))
      return wrong(std::string("'") + name + "', a number or null");
  for (const Json& score : row["scores"])
    for (const char* name : {"normalized", "low", "high"})
      if (!score.is_object() ||
          (score.contains("normalized") && !(score.contains(name) && score[name].is_number())))
        return wrong("scores with their intervals");
  return {};
}

}  // namespace

Result<Json> add_results(Json base, const Json& more) {
  for (const char* field : {"manifest", "machine", "cells", "rows"})
    if (!more.is_object() || !more.contains(field))
      return Error{Code::invalid,
                   fmt::format("the results to add say nothing about '{}'; add the JSON that "
                               "`quire leaderboard run` wrote",
                               field)};
  const auto fixed = [](Json manifest) {  // what must agree: everything but which rows there are
    if (manifest.is_object()) manifest.erase("rows");
    return manifest;
  };
  if (fixed(base["manifest"]) != fixed(more["manifest"]))
    return Error{Code::invalid,
                 "the results to add are of other samples, another model or another build: their "
                 "manifest is " +
                     fixed(more["manifest"]).dump()};
  if (more["machine"].empty())
    return Error{Code::invalid, "the results to add do not say on what machine they were measured"};
  for (const Json& row : more["rows"]) TRY_STATUS(check_row(row));
  for (const Json& row : more["rows"]) {
    const auto same = std::find_if(base["rows"].begin(), base["rows"].end(), [&](const Json& r) {
      return row_name(r) == row_name(row) && r["track"] == row["track"];
    });
    if (same == base["rows"].end())
      base["rows"].push_back(row);
    else
      *same = row;
  }
  mark_frontier(base);
  return base;
}

}  // namespace quire
