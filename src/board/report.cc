#include "board/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "board/plot.h"

namespace quire {
namespace {

std::string row_name(const Json& row) {
  const double share = row["share"];
  const std::string method = row["method"];
  return share == 1 || share == 0 ? method : fmt::format("{} {:g} %", method, 100 * share);
}

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

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text)
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  return out;
}

// Rows of a track, best mean first; rows without a mean last.
std::vector<const Json*> ranked(const Json& result, const std::string& track) {
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

struct Track {
  const char *id, *title, *about;
};
constexpr Track kTracks[] = {
    {"blind", "Compressed before the question was known",
     "One snapshot of the context serves every question."},
    {"aware", "Compressed with the question in view",
     "The result is private to one question; not comparable with the table above."},
};

// Name, bytes, mean, worst, one column per cell that passed its gate, overhead, speed.
std::vector<std::string> columns_of(const Json& result) {
  std::vector<std::string> cells;
  for (const Json& cell : result["cells"])
    if (cell["gate"].get<bool>()) cells.push_back(cell["name"]);
  return cells;
}

std::string style() {
  return R"(:root{color-scheme:light dark;--ink:#1b1f24;--dim:#667;--line:#d8dce2;--paper:#fff;--mark:#0a6;--dot:#36c}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--dim:#9aa3ad;--line:#333a42;--paper:#14171a;--mark:#3d9;--dot:#7af}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:76rem;margin:2rem auto;padding:0 1rem}
h1{font-weight:600}p.about,figcaption,footer{color:var(--dim)}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{cursor:pointer;font-weight:600}tr.best td:first-child{color:var(--mark)}
figure{margin:1rem 0}svg{width:100%;height:auto}svg text{fill:var(--dim);font-size:12px}svg .axis{stroke:var(--line)}
svg circle{fill:var(--dot)}svg circle.best{fill:var(--mark)}svg polyline{fill:none;stroke:var(--mark);stroke-width:1.5}
svg .name{font-size:11px}footer{margin:3rem 0;font-size:13px;overflow-wrap:anywhere}
)";
}

// A click on a heading sorts by it.
std::string script() {
  return R"(for(const th of document.querySelectorAll("th"))th.onclick=()=>{
const table=th.closest("table"),i=[...th.parentNode.children].indexOf(th),up=th.dataset.up!=="1";th.dataset.up=up?"1":"";
const key=r=>{const t=r.children[i].textContent,n=parseFloat(t);return isNaN(n)?t:n};
const rows=[...table.tBodies[0].rows].sort((a,b)=>{const x=key(a),y=key(b);return (typeof x===typeof y?(x<y?-1:x>y?1:0):typeof x==="number"?-1:1)*(up?1:-1)});
table.tBodies[0].append(...rows)};)";
}

std::string plots(const std::vector<const Json*>& rows) {
  Plot quality{"bytes per token", "normalized score", {}},
      speed{"bytes per token", "tokens per second", {}};
  for (const Json* row : rows) {
    const Json& r = *row;
    const bool best = r.value("frontier", false);
    if (r["mean"].is_number() && r["method"] != "none")
      quality.points.push_back({r["bytes_per_token"], r["mean"], row_name(r), best});
    if (r.contains("decode_tps") && r["decode_tps"].is_number())
      speed.points.push_back({r["bytes_per_token"], r["decode_tps"], row_name(r), best});
  }
  std::string out;
  for (const Plot* plot : {&quality, &speed})
    if (!plot->points.empty())
      out += "<figure>" + plot_svg(*plot) + "<figcaption>" + plot->y + " against " + plot->x +
             "; the line joins rows that nothing beats in both.</figcaption></figure>\n";
  return out;
}
}  // namespace

void mark_frontier(Json& result) {
  for (Json& row : result["rows"]) {
    row.erase("frontier");
    row.erase("dominated_by");
    if (!row["mean"].is_number() || row["method"] == "none") continue;
    const Json* better = nullptr;
    for (const Json& other : result["rows"]) {
      if (!other["mean"].is_number() || other["track"] != row["track"]) continue;
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
  const std::vector<std::string> cells = columns_of(result);
  std::string out;
  for (const Track& track : kTracks) {
    const std::vector<const Json*> rows = ranked(result, track.id);
    if (rows.empty()) continue;
    out += fmt::format("## {}\n\n{}\n\n| method | bytes/token | mean | worst | KL |", track.title,
                       track.about);
    for (const std::string& c : cells) out += ' ' + c + " |";
    out += " compress, % of prefill | tokens/s |\n|---|---:|---:|---:|---:|";
    for (std::size_t i = 0; i < cells.size() + 2; ++i) out += "---:|";
    out += '\n';
    for (const Json* r : rows) {
      const bool best = r->value("frontier", false);
      out += fmt::format("| {}{}{} | {} | {} | {} | {} |", best ? "**" : "", row_name(*r),
                         best ? "**" : "", number((*r)["bytes_per_token"], "{:.0f}"),
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

std::string board_html(const Json& result) {
  const std::vector<std::string> cells = columns_of(result);
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>KV-cache methods compared</title><style>" +
      style() +
      "</style></head><body>\n<h1>KV-cache methods compared</h1>\n<p class=\"about\">The same "
      "model, samples and "
      "bytes for every row. 1 is the whole cache, 0 is no context; ± is half of a 95 % interval of "
      "the "
      "difference to the whole cache, sample by sample. Bytes come from the allocator.</p>\n";
  for (const Track& track : kTracks) {
    const std::vector<const Json*> rows = ranked(result, track.id);
    if (rows.empty()) continue;
    out += fmt::format("<h2>{}</h2>\n<p class=\"about\">{}</p>\n", track.title, track.about);
    out += plots(rows);
    out +=
        "<div "
        "class=\"scroll\"><table><thead><tr><th>method</th><th>bytes/token</th><th>mean</"
        "th><th>worst</th><th>KL</th>";
    for (const std::string& c : cells) out += "<th>" + escaped(c) + "</th>";
    out += "<th>compress, % of prefill</th><th>tokens/s</th></tr></thead><tbody>\n";
    for (const Json* r : rows) {
      const std::string beaten = r->value("dominated_by", "");
      out += fmt::format("<tr{}{}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
                         r->value("frontier", false) ? " class=\"best\"" : "",
                         beaten.empty() ? "" : " title=\"beaten by " + escaped(beaten) + '"',
                         escaped(row_name(*r)), number((*r)["bytes_per_token"], "{:.0f}"),
                         number((*r)["mean"], "{:.2f}"), number((*r)["worst"], "{:.2f}"),
                         number((*r)["kl"], "{:.4f}"));
      for (const std::string& c : cells) out += "<td>" + score_text(*r, c) + "</td>";
      out += fmt::format("<td>{}</td><td>{}</td></tr>\n",
                         number(100 * (*r)["prefill_overhead"].get<double>(), "{:.1f}"),
                         number(r->value("decode_tps", Json()), "{:.0f}"));
    }
    out += "</tbody></table></div>\n";
  }
  out += "<footer>";
  for (const Json& cell : result["cells"])
    if (!cell["gate"].get<bool>())
      out +=
          "<p>" +
          escaped(cell["name"].get<std::string>() + " is n/a: " + cell["why"].get<std::string>()) +
          ".</p>";
  out += "<p>Manifest " + escaped(result["manifest_sha256"].get<std::string>()) + "<br>" +
         escaped(result["manifest"].dump()) + "<br>" + escaped(result["machine"].dump()) +
         "</p></footer>\n<script>" + script() + "</script></body></html>\n";
  return out;
}

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
