// The leaderboard as one page of HTML, with nothing outside it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lab/board/page_assets.h"
#include "lab/board/plot.h"
#include "lab/board/report.h"
#include "lab/board/row_text.h"
#include "lab/markup.h"

namespace quire {
namespace {

struct Kind {
  const char *id, *title;
};
constexpr Kind kKinds[] = {{"format", "formats"},      {"evict", "eviction"},
                           {"merge", "merging"},       {"mixed", "eviction + format"},
                           {"select", "reading less"}, {"reuse", "reuse off the prefix"},
                           {"anchor", "anchors"},      {"other", "others"}};
// Shares of the whole cache's bytes. Slack of short contexts puts rows a little above their share.
constexpr int kLimits[] = {60, 45, 35, 25, 20};

std::string row_id(const std::string& track, std::size_t i) {
  return fmt::format("{}-{}", track, i);
}

double full_bytes(const Json& result) {
  for (const Json& row : result["rows"])
    if (row["method"] == "full") return row["bytes_per_token"];
  return 1;
}

// A cell of a table: what is shown, and what it is sorted by.
std::string cell(const Json& x, const char* form) {
  if (!x.is_number()) return "<td class=\"none\">n/a</td>";
  const double v = x;
  return fmt::format("<td data-v=\"{:.6g}\">{}</td>", v, fmt::format(fmt::runtime(form), v));
}

std::string score_cell(const Json& row, const std::string& name) {
  const Json& scores = row["scores"];
  if (!scores.contains(name) || !scores[name].contains("normalized"))
    return "<td class=\"none\">n/a</td>";
  const Json& s = scores[name];
  const double v = s["normalized"], half = (s["high"].get<double>() - s["low"].get<double>()) / 2;
  return fmt::format(
      "<td class=\"score\" data-v=\"{0:.6g}\" style=\"--v:{1:.2f}\">{0:.2f}<small> ± "
      "{2:.2f}</small></td>",
      v, std::clamp(v, 0.0, 1.0), half);
}

std::string plots(const std::string& track, const std::vector<const Json*>& rows) {
  Plot quality{"bytes per token", "mean score (1: the whole cache, 0: no context)", {}},
      speed{"bytes per token", "tokens per second", {}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& r = *rows[i];
    const double bytes = r["bytes_per_token"];
    if (bytes <= 0) continue;
    const PlotPoint at{bytes, 0, row_name(r), row_kind(r), row_id(track, i)};
    if (r["mean"].is_number() && r["method"] != "none") {
      quality.points.push_back(at);
      quality.points.back().y = r["mean"];
      quality.points.back().best = r.value("frontier", false);
    }
    if (r.contains("decode_tps") && r["decode_tps"].is_number()) {
      speed.points.push_back(at);
      speed.points.back().y = r["decode_tps"];
    }
  }
  mark_best(speed);
  std::string out = "<div class=\"plots\">\n";
  for (const Plot* plot : {&quality, &speed})
    if (!plot->points.empty()) out += "<figure>" + plot_svg(*plot) + "</figure>\n";
  return out +
         "</div>\n<p class=\"about\">Each dot is a row; a click leads to it. The line joins rows "
         "that "
         "nothing beats in both.</p>\n";
}

// The best row within each share of the whole cache's bytes.
std::string winners(const std::vector<const Json*>& rows, double full) {
  std::string out = "<ul class=\"winners\">";
  for (const int limit : kLimits) {
    const auto best = std::ranges::find_if(rows, [&](const Json* r) {
      return r->contains("frontier") && row_kind(*r) != "anchor" &&
             (*r)["bytes_per_token"].get<double>() <= full * limit / 100;
    });
    if (best == rows.end()) continue;
    out += fmt::format("<li><span>≤ {} % of the bytes</span><b>{}</b><span>mean {:.2f}</span></li>",
                       limit, escaped(row_name(**best)), (**best)["mean"].get<double>());
  }
  return out + "</ul>\n";
}

// Columns before the tasks, and after them.
struct Column {
  const char *title, *about, *form;
  Json (*value)(const Json& row, double full);
};
Json field(const Json& row, const char* name, double times = 1) {
  return row.contains(name) && row[name].is_number() ? Json(times * row[name].get<double>())
                                                     : Json();
}
constexpr Column kBefore[] = {
    {"bytes/token", "held by the sequence, from the allocator", "{:.0f}",
     [](const Json& r, double) { return field(r, "bytes_per_token"); }},
    {"%", "of the whole cache's bytes", "{:.0f}",
     [](const Json& r, double full) { return field(r, "bytes_per_token", 100 / full); }},
    {"peak", "bytes per token, at most, while reading and compressing", "{:.0f}",
     [](const Json& r, double) { return field(r, "bytes_peak"); }},
    {"constant", "bytes that do not grow with the context: window layers", "{:.0f}",
     [](const Json& r, double) { return field(r, "bytes_constant"); }},
    {"fits", "thousands of tokens in 1 GiB", "{:.0f}",
     [](const Json& r, double) {
       const double bytes = r["bytes_per_token"];
       return bytes > 0 ? Json((1 << 30) / bytes / 1000) : Json();
     }},
    {"mean", "of the tasks", "{:.2f}", [](const Json& r, double) { return field(r, "mean"); }},
    {"worst", "of the tasks", "{:.2f}", [](const Json& r, double) { return field(r, "worst"); }},
    {"KL", "to the whole cache, per token", "{:.4f}",
     [](const Json& r, double) { return field(r, "kl"); }},
};
constexpr Column kAfter[] = {
    {"compress %", "of the time that reading the context takes", "{:.1f}",
     [](const Json& r, double) { return field(r, "prefill_overhead", 100); }},
    {"tokens/s", "of one answer", "{:.0f}",
     [](const Json& r, double) { return field(r, "decode_tps"); }},
};

std::string table(const Json& result, const std::string& track,
                  const std::vector<const Json*>& rows, double full) {
  const std::vector<std::string> cells = open_cells(result);
  std::vector<Column> before(std::begin(kBefore), std::end(kBefore));
  std::erase_if(before, [&](const Column& c) {  // zero everywhere: not a word about it
    return std::ranges::all_of(rows, [&](const Json* r) {
      const Json v = c.value(*r, full);
      return !v.is_number() || v.get<double>() == 0;
    });
  });
  const auto heading = [](const Column& c) {
    return fmt::format("<th title=\"{}\">{}</th>", c.about, c.title);
  };
  std::string out = "<div class=\"scroll\"><table><thead><tr><th>method</th>";
  for (const Column& c : before) out += heading(c);
  for (const Json& c : result["cells"])
    if (c["gate"].get<bool>())
      out += fmt::format("<th title=\"{}\">{}</th>", escaped(c["task"]), escaped(c["name"]));
  for (const Column& c : kAfter) out += heading(c);
  out += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& r = *rows[i];
    const std::string beaten = r.value("dominated_by", "");
    out += fmt::format("<tr id=\"{}\" data-kind=\"{}\" data-share=\"{:.4f}\"{}{}><td>{}</td>",
                       row_id(track, i), row_kind(r), r["bytes_per_token"].get<double>() / full,
                       r.value("frontier", false) ? " class=\"best\"" : "",
                       beaten.empty() ? "" : " title=\"beaten by " + escaped(beaten) + '"',
                       escaped(row_name(r)));
    for (const Column& c : before) out += cell(c.value(r, full), c.form);
    for (const std::string& c : cells) out += score_cell(r, c);
    for (const Column& c : kAfter) out += cell(c.value(r, full), c.form);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string controls(const Json& result) {
  std::map<std::string, int> count;
  for (const Json& row : result["rows"]) ++count[row_kind(row)];
  std::string out =
      "<form class=\"controls\" onsubmit=\"return false\"><fieldset><legend>track</legend>";
  for (const auto& [id, title] :
       {std::pair{"", "both"}, {"blind", "question unknown"}, {"aware", "question known"}})
    out += fmt::format("<label><input type=\"radio\" name=\"track\" value=\"{}\"{}>{}</label>", id,
                       *id ? "" : " checked", title);
  out += "</fieldset><fieldset><legend>kind</legend>";
  for (const Kind& k : kKinds)
    if (count[k.id] > 0)
      out += fmt::format(
          "<label class=\"{0}\"><input type=\"checkbox\" name=\"kind\" value=\"{0}\" checked>{1} "
          "<small>{2}</small></label>",
          k.id, k.title, count[k.id]);
  out +=
      "</fieldset><fieldset><legend>bytes</legend><select name=\"limit\"><option "
      "value=\"\">any</option>";
  for (const int limit : kLimits)
    out += fmt::format("<option value=\"{0}\">≤ {0} % of the whole cache</option>", limit);
  return out +
         "</select></fieldset><fieldset><legend>rows</legend><input type=\"search\" name=\"name\" "
         "placeholder=\"name\" aria-label=\"name\"><label><input type=\"checkbox\" "
         "name=\"best\">unbeaten "
         "only</label></fieldset><output></output></form>\n";
}

// Model, tier and size of the run, as far as the manifest says.
std::string facts(const Json& result) {
  const Json& manifest = result["manifest"];
  const Json subject = manifest.value("subject", Json::object());
  std::string out;
  const auto add = [&](const std::string& text) { out += "<li>" + escaped(text) + "</li>"; };
  if (subject.is_object() && subject.contains("model") && subject["model"].is_string())
    add(subject["model"].get<std::string>());
  if (manifest.contains("tier") && manifest["tier"].is_string())
    add(manifest["tier"].get<std::string>() + " tier");
  add(fmt::format("{} rows", result["rows"].size()));
  add(fmt::format("{} of {} tasks passed their gates", open_cells(result).size(),
                  result["cells"].size()));
  if (result["machine"].is_object() && result["machine"].contains("processor") &&
      result["machine"]["processor"].is_string())
    add(result["machine"]["processor"].get<std::string>());
  return "<ul class=\"facts\">" + out + "</ul>\n";
}

std::string footer(const Json& result) {
  std::string out = "<footer>";
  for (const Json& cell : result["cells"])
    if (!cell["gate"].get<bool>())
      out +=
          "<p>" +
          escaped(cell["name"].get<std::string>() + " is n/a: " + cell["why"].get<std::string>()) +
          ".</p>";
  return out + "<p>Manifest <code>" + escaped(result["manifest_sha256"].get<std::string>()) +
         "</code></p><details><summary>The manifest and the machine</summary><pre>" +
         escaped(result["manifest"].dump(1)) + "\n" + escaped(result["machine"].dump(1)) +
         "</pre></details></footer>\n";
}

}  // namespace

std::string board_html(const Json& result) {
  const double full = full_bytes(result);
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><title>KV-cache methods "
      "compared</title><style>{}</style></head><body>\n<h1>KV-cache methods compared</h1>\n{}"
      "<p class=\"about\">The same model, samples and bytes for every row. A score of 1 is the "
      "whole "
      "cache, 0 is no context; ± is half of a 95 % interval of the difference to the whole cache, "
      "sample by sample. Bytes come from the allocator.</p>\n{}",
      kPageStyle, facts(result), controls(result));
  for (const BoardTrack& track : kBoardTracks) {
    const std::vector<const Json*> rows = ranked_rows(result, track.id);
    if (rows.empty()) continue;
    out += fmt::format("<section id=\"{}\"><h2>{}</h2>\n<p class=\"about\">{}</p>\n", track.id,
                       track.title, track.about);
    out += winners(rows, full) + plots(track.id, rows) + table(result, track.id, rows, full);
    out += "</section>\n";
  }
  return out + footer(result) + "<div id=\"tip\" role=\"tooltip\" hidden></div>\n<script>" +
         kPageScript + "</script></body></html>\n";
}

}  // namespace quire
