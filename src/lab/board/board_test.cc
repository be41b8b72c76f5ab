#include "lab/board/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/file.h"
#include "lab/board/plot.h"
#include "lab/board/report.h"
#include "lab/board/row_text.h"
#include "lab/board/testing.h"

namespace quire {
namespace {
using testing::ElementsAre, testing::HasSubstr, testing::Not;

const std::vector<RowSpec> kRows = {{"full", 1},          {"none", 0},         {"random", 0.5},
                                    {"oracle", 0.5},      {"streaming", 0.25}, {"streaming", 0.5},
                                    {"oracle", 0.3, true}};

Json result_of(const std::string& out = "", const std::string& tier = "smoke") {
  ToySubject subject;
  return run_board(subject, toy_vocabulary(), kRows, {.tier = tier, .out = out}).value();
}

std::map<std::string, Json> rows_of(const Json& result) {
  std::map<std::string, Json> rows;
  for (const Json& r : result["rows"]) {
    const RowSpec spec{r["method"], r["share"], r["track"] == "aware"};
    rows[spec.name() + (spec.aware ? " aware" : "")] = r;
  }
  return rows;
}

struct Folder {
  Folder() : path(testing::TempDir() + "quire_board_" + std::to_string(getpid())) {
    std::filesystem::remove_all(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

TEST(Board, OrdersTheAnchorsAsTheyMust) {
  auto rows = rows_of(result_of());
  EXPECT_DOUBLE_EQ(rows["full"]["mean"], 1);
  EXPECT_DOUBLE_EQ(rows["none"]["mean"], 0);
  EXPECT_LT(rows["random 50 %"]["worst"].get<double>(), 0.2);
  EXPECT_GE(rows["oracle 50 %"]["worst"].get<double>(), 0.45);
  EXPECT_NEAR(rows["full"]["bytes_per_token"], 100, 1e-9);
  EXPECT_NEAR(rows["oracle 50 %"]["bytes_per_token"], 50, 2);
  EXPECT_NEAR(rows["oracle 50 %"]["prefill_overhead"], 0.05, 1e-9);
}

TEST(Board, IsTheSameTwiceAndNamedByItsManifest) {
  EXPECT_EQ(result_of().dump(), result_of().dump());
  ToySubject subject;
  const Json other =
      run_board(subject, toy_vocabulary(), kRows, {.tier = "smoke", .seed = 2}).value();
  EXPECT_NE(other["manifest_sha256"], result_of()["manifest_sha256"]);
}

TEST(Board, AsksEverySampleOnceForAllRows) {
  ToySubject subject;
  std::size_t last = 0;
  const auto progress = [&](std::size_t done, std::size_t all) {
    EXPECT_EQ(done, last + 1);
    EXPECT_EQ(all, 15u);
    last = done;
  };
  ASSERT_TRUE(
      run_board(subject, toy_vocabulary(), kRows, {.tier = "smoke", .progress = progress}).ok());
  EXPECT_EQ(subject.asked, 15u);  // three tasks, four samples; and three rounds for speed
  EXPECT_EQ(last, 15u);
}

TEST(Board, AsksEachTaskAtTheHardestLevelThatTellsMethodsApart) {
  const auto levels = [](std::size_t context_max) {
    ToySubject subject;
    subject.context_max = context_max;
    const Json result = run_board(subject, toy_vocabulary(), kRows, {.tier = "standard"}).value();
    std::map<std::string, std::string> by_task;
    for (const Json& cell : result["cells"]) {
      const std::string level = cell["level"];
      const bool fresh =
          by_task.emplace(cell["id"], cell["gate"].get<bool>() ? level : level + " n/a").second;
      EXPECT_TRUE(fresh) << cell.dump();
    }
    return by_task;
  };
  EXPECT_EQ(levels(SIZE_MAX)["S4"], "64");
  EXPECT_EQ(levels(400)["S4"], "32x2");
  EXPECT_EQ(levels(10)["S4"], "4 n/a");
}

// Speed is that of a sample of its own; rows that cannot do a task are not asked, and have no score.
TEST(Board, TellsSpeedsAndLeavesOutWhoCannot) {
  ToySubject subject;
  subject.cannot = "streaming";
  const Json result = run_board(subject, toy_vocabulary(), kRows, {.tier = "smoke"}).value();
  auto rows = rows_of(result);
  EXPECT_DOUBLE_EQ(rows["full"]["decode_tps"], 50);
  EXPECT_FALSE(rows["none"].contains("decode_tps"));
  for (const Json& row : result["rows"]) {
    if (row["method"] != "streaming") continue;
    EXPECT_TRUE(row["mean"].is_null());
    EXPECT_TRUE(row["scores"].empty() || row["scores"].is_null()) << row.dump();
  }
}

TEST(Board, GoesOnWhereItStopped) {
  const Folder folder;
  const BoardOptions options{.tier = "smoke", .out = folder.path};
  ToySubject breaks;
  breaks.answers_max = 10;
  EXPECT_FALSE(run_board(breaks, toy_vocabulary(), kRows, options).ok());
  std::ofstream(folder.path + "/progress.jsonl", std::ios::app) << "{\"key\": \"S4/4/0\", \"numb";
  ToySubject resumes;
  const Json result = run_board(resumes, toy_vocabulary(), kRows, options).value();
  EXPECT_EQ(resumes.asked, 5u);
  EXPECT_EQ(result.dump(), result_of().dump());
  ToySubject again;
  ASSERT_TRUE(run_board(again, toy_vocabulary(), kRows, options).ok());
  EXPECT_EQ(again.asked, 0u);
}

TEST(Board, RefusesToContinueAnotherRun) {
  const Folder folder;
  result_of(folder.path);
  ToySubject subject;
  const auto other =
      run_board(subject, toy_vocabulary(), kRows, {.tier = "smoke", .seed = 2, .out = folder.path});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("another run"));
}

TEST(Board, WantsItsAnchors) {
  ToySubject subject;
  const auto without = run_board(subject, toy_vocabulary(), std::span(kRows).first(3), {});
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(without.error().message, HasSubstr("oracle"));
  EXPECT_FALSE(run_board(subject, toy_vocabulary(), kRows, {.tier = "huge"}).ok());
}

TEST(DefaultRows, HoldEveryMethodAtEveryShareOnItsTrack) {
  const std::vector<double> shares = {0.5, 0.25};
  const std::vector<RowSpec> rows = default_rows(shares);
  for (const RetainMethod* m : retain_methods())
    for (double share : shares) {
      const RowSpec row{std::string(m->name), share, m->shares == RetainClass::question};
      EXPECT_EQ(std::count(rows.begin(), rows.end(), row), 1) << m->name;
    }
}

TEST(Frontier, MarksWhatNothingBeatsInBoth) {
  const auto row = [](const char* name, const char* track, double bytes, double mean) {
    return Json{{"method", name},
                {"share", 0.5},
                {"track", track},
                {"bytes_per_token", bytes},
                {"mean", mean}};
  };
  Json result = {
      {"rows",
       {row("a", "blind", 10, 0.5), row("b", "blind", 20, 0.9), row("c", "blind", 20, 0.4),
        row("d", "aware", 30, 0.1), row("oracle", "blind", 5, 1.0)}}};
  mark_frontier(result);
  EXPECT_TRUE(result["rows"][0]["frontier"]);
  EXPECT_TRUE(result["rows"][1]["frontier"]);
  EXPECT_FALSE(result["rows"][2]["frontier"]);
  EXPECT_EQ(result["rows"][2]["dominated_by"], "b 50 %");
  EXPECT_TRUE(result["rows"][3]["frontier"]);            // tracks are not compared
  EXPECT_FALSE(result["rows"][4].contains("frontier"));  // knows what no method can
}

TEST(Report, PrintsEveryRowOnceAndWhatIsNotAvailable) {
  const Json result = result_of();
  const std::string markdown = board_markdown(result);
  EXPECT_THAT(markdown, HasSubstr("streaming 25 %"));
  EXPECT_THAT(markdown, HasSubstr("question in view"));
  for (const Json& cell : result["cells"]) {
    const std::string name = cell["name"];
    EXPECT_THAT(markdown,
                HasSubstr(cell["gate"].get<bool>() ? ' ' + name + " |" : name + " is n/a"));
  }
}

TEST(Report, ThePageStandsAloneAndEscapesNames) {
  Json result = result_of();
  result["rows"][4]["method"] = "<script>alert(1)</script>";
  mark_frontier(result);
  const std::string html = board_html(result);
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_THAT(html, HasSubstr(result["manifest_sha256"].get<std::string>()));
}

TEST(AddResults, TakesRowsOfTheSameSamplesOnly) {
  const Json base = result_of();
  Json more = base;
  more["rows"] = Json::array({base["rows"][4]});
  more["rows"][0]["method"] = "new";
  more["manifest"]["rows"] = {"new 25 %"};
  const Json both = add_results(base, more).value();
  EXPECT_EQ(both["rows"].size(), base["rows"].size() + 1);
  EXPECT_EQ(add_results(both, more).value()["rows"].size(), both["rows"].size());  // replaced
  more["manifest"]["seed"] = 99;
  EXPECT_FALSE(add_results(base, more).ok());
  more = base;
  more["machine"] = Json::object();
  EXPECT_THAT(add_results(base, more).error().message, HasSubstr("machine"));
  EXPECT_FALSE(add_results(base, Json("nonsense")).ok());
}

// A file that another program wrote: rows that the pages could not render are refused, by name.
TEST(AddResults, RefusesRowsThatPagesCannotShow) {
  const Json base = result_of();
  Json good = base;
  good["rows"] = Json::array({base["rows"][4]});
  good["rows"][0]["method"] = "theirs";
  good["rows"][0]["notes"] = "of their own";
  const auto added = add_results(base, good);
  ASSERT_TRUE(added.ok());
  EXPECT_THAT(board_html(added.value()), HasSubstr("theirs 25 %"));
  EXPECT_THAT(board_markdown(added.value()), HasSubstr("theirs 25 %"));
  const std::pair<const char*, Json> wrong[] = {
      {"method", 5},  {"share", "half"},  {"track", "middle"}, {"bytes_per_token", Json()},
      {"kl", "none"}, {"scores", "good"}, {"mean", "high"},    {"prefill_overhead", Json()},
      {"worst", true}};
  for (const auto& [field, value] : wrong) {
    Json bad = good;
    bad["rows"][0][field] = value;
    const auto refused = add_results(base, bad);
    ASSERT_FALSE(refused.ok()) << field;
    EXPECT_THAT(refused.error().message, HasSubstr(field));
    bad["rows"][0].erase(field);
    EXPECT_FALSE(add_results(base, bad).ok()) << field;
  }
  Json bad = good;
  bad["rows"][0] = "a row";
  EXPECT_FALSE(add_results(base, bad).ok());
  bad = good;
  for (Json& score : bad["rows"][0]["scores"]) score["normalized"] = 1;
  for (Json& score : bad["rows"][0]["scores"]) score.erase("low");
  EXPECT_FALSE(add_results(base, bad).ok());
}

// Every row is there once, with what the controls go by, and a dot that leads to it.
TEST(Report, ThePageCanBeSortedAndFiltered) {
  const Json result = result_of();
  const std::string html = board_html(result);
  const auto count = [&](const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = html.find(what); at != html.npos; at = html.find(what, at + 1)) ++n;
    return n;
  };
  if (const char* keep = std::getenv("QUIRE_BOARD_PAGE")) std::ofstream(keep) << html;
  EXPECT_EQ(count("<tr id="), result["rows"].size());
  EXPECT_EQ(count("data-kind="), result["rows"].size());
  EXPECT_EQ(count("<tr id=\"blind-0\""), 1u);
  EXPECT_GE(count("data-row=\"blind-0\""), 1u);
  EXPECT_EQ(count("name=\"kind\" value=\"evict\""), 1u);
  EXPECT_EQ(count("name=\"kind\" value=\"merge\""), 0u);  // none in this run
}

TEST(RowKind, IsWhatARowDoes) {
  const auto kind = [](const char* method) { return row_kind({{"method", method}}); };
  EXPECT_EQ(kind("full"), "anchor");
  EXPECT_EQ(kind("snapkv"), "evict");
  EXPECT_EQ(kind("int8"), "format");
  EXPECT_EQ(kind("h2o+value"), "merge");
  EXPECT_EQ(kind("snapkv+int8"), "mixed");
  EXPECT_EQ(kind("quest"), "select");
  EXPECT_EQ(kind("cacheblend"), "reuse");
  EXPECT_EQ(kind("theirs"), "other");
}

TEST(Plot, MarksWhatNothingBeats) {
  Plot plot{"x", "y", {{10, 1, "a"}, {20, 3, "b"}, {20, 2, "c"}, {30, 3, "d"}, {5, 0, "e"}}};
  mark_best(plot);
  std::string best;
  for (const PlotPoint& p : plot.points)
    if (p.best) best += p.name;
  EXPECT_EQ(best, "abe");
  EXPECT_THAT(plot_doublings(3000, 24000), ElementsAre(2000, 4000, 8000, 16000, 32000));
}

// Names of neighbours would cover each other: the better one is written.
TEST(Plot, NamesOfTheFrontierDoNotOverlap) {
  Plot plot{"x", "y", {}};
  for (int i = 0; i < 40; ++i)
    plot.points.push_back({1000.0 + i, 0.5 + i * 1e-4, "a-rather-long-name " + std::to_string(i)});
  mark_best(plot);
  const std::string svg = plot_svg(plot);
  std::size_t names = 0;
  for (std::size_t at = svg.find("class=\"name\""); at != svg.npos;
       at = svg.find("class=\"name\"", at + 1))
    ++names;
  EXPECT_GE(names, 1u);
  EXPECT_LT(names, 10u);
  EXPECT_THAT(svg, HasSubstr("a-rather-long-name 39</text>"));
}

TEST(PlotTicks, AreRoundAndCoverTheRange) {
  EXPECT_THAT(plot_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  for (double high : {0.37, 1.0, 17.0, 23040.0}) {
    const std::vector<double> ticks = plot_ticks(0, high, 8);
    EXPECT_EQ(ticks.front(), 0);
    EXPECT_GE(ticks.back(), high);
    EXPECT_GE(ticks.size(), 4u);
    EXPECT_LE(ticks.size(), 13u);
  }
}

}  // namespace
}  // namespace quire
