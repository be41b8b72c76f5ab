#include "lab/board/board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "kv/key.h"
#include "kv/retain/retain.h"
#include "lab/board/progress.h"
#include "lab/board/report.h"

namespace quire {
namespace {

struct RowTier {
  std::string_view name;
  std::uint32_t samples;
  std::uint32_t levels;                // of each task, from the easiest
  std::uint32_t trials;                // samples that choose one of them; 0: all are asked
  std::uint32_t timed;                 // tokens of the context at which speed is measured
  std::vector<std::string_view> only;  // ids; empty: all
};
const RowTier kTiers[] = {{"smoke", 4, 1, 0, 512, {"S1", "S3", "S4"}},
                          {"standard", 6, 9, 10, 2048, {}},
                          {"full", 40, 9, 0, 4096, {}}};
constexpr std::uint32_t kStreams = 2;  // samples of S9: each is long
// Speeds are the best of this many rounds of all rows: other work on the machine only ever makes a
// round slower.
constexpr std::uint32_t kTimedRounds = 3;
constexpr std::uint32_t kFirstTrial = 1'000'000;  // samples that no row is scored by

Result<const RowTier*> find_tier(const std::string& name) {
  for (const RowTier& t : kTiers)
    if (t.name == name) return &t;
  return Error{Code::invalid, "no tier '" + name + "'; there are: smoke standard full"};
}

struct Cell {  // a task at a level
  const Task* task;
  const Level* level;
  std::optional<Gate> gate = {};  // where trials have found it

  // The rows themselves show whether context helps at all.
  bool tried() const { return task->metric == Metric::accuracy || task->metric == Metric::ranking; }
};

std::vector<Cell> cells_of(const RowTier& tier) {
  std::vector<Cell> cells;
  for (const Task& task : suite_tasks()) {
    if (!tier.only.empty() &&
        std::find(tier.only.begin(), tier.only.end(), task.id) == tier.only.end())
      continue;
    for (const Level& level :
         task.levels.first(std::min<std::size_t>(tier.levels, task.levels.size())))
      cells.push_back({&task, &level});
  }
  return cells;
}

std::uint32_t samples_of(const RowTier& tier, const Cell& cell) {
  return cell.task->id == "S9" ? std::min(kStreams, tier.samples) : tier.samples;
}

std::string hex_of(const Digest& digest) {
  std::string hex;
  for (std::uint8_t byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string digest_of(std::span<const TokenId> tokens) {
  return hex_of(sha256(std::as_bytes(tokens)));
}

// Everything that fixes the scores. Its hash names the run.
Json manifest_of(const Subject& subject, const Vocabulary& vocabulary, const RowTier& tier,
                 std::span<const RowSpec> rows, std::uint64_t seed) {
  Json cells = Json::array(), names = Json::array();
  for (const Cell& c : cells_of(tier))
    cells.push_back(fmt::format("{} {}", c.task->id, c.level->name));
  for (const RowSpec& r : rows) names.push_back(r.name() + (r.aware ? " aware" : ""));
  return {{"suite", "v1"},
          {"seed", seed},
          {"tier", tier.name},
          {"samples", tier.samples},
          {"trials", tier.trials},
          {"timed", tier.timed},
          {"cells", cells},
          {"rows", names},
          {"text_sha256", digest_of(vocabulary.text)},
          {"words_sha256", digest_of(vocabulary.words)},
          {"subject", subject.identity()}};
}

double mean_kl(std::span<const Reply> replies) {
  double sum = 0;
  std::size_t count = 0;
  for (const Reply& r : replies)
    for (float x : r.kl) sum += x, ++count;
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// By row, by sample.
using Grid = std::vector<std::vector<Outcome>>;

std::vector<double> scores_of(const std::vector<Outcome>& outcomes) {
  std::vector<double> x;
  for (const Outcome& o : outcomes) x.push_back(o.score);
  return x;
}

std::optional<std::size_t> row_named(std::span<const RowSpec> rows, std::string_view method,
                                     double share) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].method == method && rows[i].share == share && !rows[i].aware) return i;
  return std::nullopt;
}

// Rows that every run has, in the order of Anchors: they say which tasks count.
const std::vector<RowSpec>& anchor_rows() {
  static const std::vector<RowSpec> kRows = {
      {"full", 1}, {"none", 0}, {"random", 0.5}, {"oracle", 0.5}};
  return kRows;
}
std::size_t index_of(std::span<const RowSpec> rows, const RowSpec& anchor) {
  return *row_named(rows, anchor.method, anchor.share);
}

// One cell's part of the result: its gate, and every row's score.
Json cell_json(const Cell& cell, const Grid& grid, std::span<const RowSpec> rows, double chance,
               std::uint64_t seed, std::vector<Json>& row_scores) {
  const std::string name = fmt::format("{} {}", cell.task->id, cell.level->name);
  const std::vector<double> full = scores_of(grid[*row_named(rows, "full", 1)]);
  const std::vector<double> none = scores_of(grid[*row_named(rows, "none", 0)]);
  const std::vector<double> random = scores_of(grid[*row_named(rows, "random", 0.5)]);
  const std::vector<double> oracle = scores_of(grid[*row_named(rows, "oracle", 0.5)]);
  const Gate passed =
      cell.gate.value_or(gate(cell.task->metric, {full, none, random, oracle}, chance));
  const double f = mean_of(full), n = mean_of(none);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!grid[r].empty() && !grid[r][0].asked()) continue;
    const std::vector<double> own = scores_of(grid[r]);
    const Interval less = paired_difference(own, full, seed);
    Json& out = row_scores[r][name];
    out["score"] = mean_of(own);
    if (!passed.open) continue;
    out["normalized"] = normalized(mean_of(own), f, n);
    // The whole cache is the fixed point: the interval is that of the difference to it.
    out["low"] = normalized(f + less.low, f, n);
    out["high"] = normalized(f + less.high, f, n);
  }
  Json out = {{"id", cell.task->id},
              {"task", cell.task->name},
              {"level", cell.level->name},
              {"name", name},
              {"full", f},
              {"none", n},
              {"gate", passed.open}};
  if (!passed.open) out["why"] = passed.why;
  return out;
}

Json row_json(const RowSpec& row, const Json& scores, std::vector<Outcome> all, double decode_s) {
  std::erase_if(all, [](const Outcome& o) { return !o.asked(); });
  Outcome sum;
  for (const Outcome& o : all)
    for (double Outcome::*field : kOutcomeFields)
      sum.*field += o.*field / static_cast<double>(all.size());
  double mean = 0, worst = 0;
  std::size_t count = 0;
  for (const Json& s : scores) {
    if (!s.contains("normalized")) continue;
    const double x = s["normalized"];
    worst = count == 0 ? x : std::min(worst, x);
    mean += x;
    ++count;
  }
  Json out = {{"method", row.method},
              {"share", row.share},
              {"track", row.aware ? "aware" : "blind"},
              {"bytes_per_token", sum.bytes},
              {"bytes_constant", sum.constant},
              {"bytes_peak", sum.peak},
              {"kl", sum.kl},
              {"scores", scores}};
  out["prefill_overhead"] = sum.prefill_s > 0 ? sum.compress_s / sum.prefill_s : 0;
  if (decode_s > 0) out["decode_tps"] = 1 / decode_s;
  out["mean"] = count == 0 ? Json() : Json(mean / static_cast<double>(count));
  out["worst"] = count == 0 ? Json() : Json(worst);
  return out;
}

// What a run is made of.
struct Run {
  Subject& subject;
  const Vocabulary& vocabulary;
  std::span<const RowSpec> rows;
  const RowTier& tier;
  std::uint64_t seed;
  Progress& progress;
  std::function<void()> step;  // after each sample
};

// Does this level tell methods apart? Anchors alone answer, on samples of their own.
Result<Gate> try_level(const Run& run, const Cell& cell) {
  const std::vector<RowSpec>& anchors = anchor_rows();
  std::vector<std::vector<double>> scores(anchors.size());
  double chances = 0;
  for (std::uint32_t i = 0; i < run.tier.trials; ++i) {
    const std::string key = fmt::format("trial/{}/{}/{}", cell.task->id, cell.level->name, i);
    const Sample sample =
        make_sample(*cell.task, *cell.level, run.vocabulary, run.seed, kFirstTrial + i);
    chances += chance(*cell.task, sample) / run.tier.trials;
    if (!run.progress.find(key)) {
      TRY(const std::vector<Measured> measured, run.subject.answer(sample, anchors));
      std::vector<Outcome> outcomes(run.rows.size(), Outcome{.score = std::nan("")});
      for (std::size_t a = 0; a < anchors.size(); ++a)
        outcomes[index_of(run.rows, anchors[a])].score =
            score_replies(*cell.task, sample, measured[a].replies, measured[0].replies);
      TRY_STATUS(run.progress.add(key, outcomes));
    }
    const std::vector<Outcome>& known = *run.progress.find(key);
    for (std::size_t a = 0; a < anchors.size(); ++a)
      scores[a].push_back(known[index_of(run.rows, anchors[a])].score);
    run.step();
  }
  return gate(cell.task->metric, {scores[0], scores[1], scores[2], scores[3]}, chances);
}

// Of each task the hardest level that tells methods apart; the easiest where none does.
Result<std::vector<Cell>> choose_levels(const Run& run) {
  std::vector<Cell> chosen;
  for (Cell cell : cells_of(run.tier)) {
    const bool first = chosen.empty() || chosen.back().task != cell.task;
    if (cell.tried()) {
      TRY(cell.gate, try_level(run, cell));
    }
    if (first)
      chosen.push_back(cell);
    else if (cell.gate && cell.gate->open)
      chosen.back() = cell;
  }
  return chosen;
}

std::size_t samples_of_run(const RowTier& tier) {
  std::size_t count = kTimedRounds;
  const Task* last = nullptr;
  for (const Cell& cell : cells_of(tier)) {
    if (tier.trials > 0 && cell.tried()) count += tier.trials;
    if (tier.trials == 0 || cell.task != last) count += samples_of(tier, cell);
    last = cell.task;
  }
  return count;
}

// Seconds for one token of an answer, by row; 0: not measured.
Result<std::vector<double>> decode_times(const Run& run) {
  const Level level{"timed", run.tier.timed, 2, 0};
  Sample sample = make_sample(suite_tasks()[0], level, run.vocabulary, run.seed, 0);
  sample.timed = true;
  std::vector<double> best(run.rows.size(), std::numeric_limits<double>::infinity());
  for (std::uint32_t round = 0; round < kTimedRounds; ++round) {
    const std::string key = fmt::format("E4/{}/{}", run.tier.timed, round);
    if (!run.progress.find(key)) {
      TRY(const std::vector<Measured> measured, run.subject.answer(sample, run.rows));
      std::vector<Outcome> outcomes(run.rows.size());
      for (std::size_t r = 0; r < outcomes.size(); ++r) outcomes[r].decode_s = measured[r].decode_s;
      TRY_STATUS(run.progress.add(key, outcomes));
    }
    const std::vector<Outcome>& known = *run.progress.find(key);
    for (std::size_t r = 0; r < best.size(); ++r) best[r] = std::min(best[r], known[r].decode_s);
    run.step();
  }
  return best;
}
}  // namespace

std::string RowSpec::name() const {
  return share == 1 || share == 0 ? method : fmt::format("{} {:g} %", method, 100 * share);
}

std::vector<RowSpec> default_rows(std::span<const double> shares) {
  std::vector<RowSpec> rows = anchor_rows();
  for (const RetainMethod* m : retain_methods())
    for (double share : shares) {
      const RowSpec row{std::string(m->name), share, m->shares == RetainClass::question};
      if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    }
  return rows;
}

Result<Json> run_board(Subject& subject, const Vocabulary& vocabulary,
                       std::span<const RowSpec> rows, const BoardOptions& options) {
  TRY(const RowTier* tier, find_tier(options.tier));
  for (const RowSpec& anchor : anchor_rows())
    if (!row_named(rows, anchor.method, anchor.share))
      return Error{Code::invalid,
                   fmt::format("the anchor row '{}' at {:g} % is missing: without it "
                               "no task has a gate",
                               anchor.method, 100 * anchor.share)};
  const Json manifest = manifest_of(subject, vocabulary, *tier, rows, options.seed);
  const std::string hash = hex_of(sha256(manifest.dump()));
  TRY(Progress progress, Progress::open(options.out, hash, rows.size()));
  const std::size_t full = *row_named(rows, "full", 1);
  Json cell_list = Json::array();
  std::vector<Json> scores(rows.size(), Json::object());
  Grid all(rows.size());
  std::size_t done = 0;
  const std::size_t all_samples = samples_of_run(*tier);
  const auto step = [&] {
    if (options.progress) options.progress(++done, all_samples);
  };
  const Run run{subject, vocabulary, rows, *tier, options.seed, progress, step};
  TRY(const std::vector<double> decode_s, decode_times(run));
  std::vector<Cell> cells = cells_of(*tier);
  if (tier->trials > 0) {
    TRY(cells, choose_levels(run));
  }
  for (const Cell& cell : cells) {
    Grid grid(rows.size());
    double chances = 0;
    const std::uint32_t samples = samples_of(*tier, cell);
    for (std::uint32_t i = 0; i < samples; ++i) {
      const Sample sample = make_sample(*cell.task, *cell.level, vocabulary, options.seed, i);
      chances += chance(*cell.task, sample) / samples;
      const std::string key = fmt::format("{}/{}/{}", cell.task->id, cell.level->name, i);
      const std::vector<Outcome>* known = progress.find(key);
      if (!known) {
        TRY(std::vector<Measured> measured, subject.answer(sample, rows));
        CHECK(measured.size() == rows.size());
        std::vector<Outcome> outcomes;
        for (const Measured& m : measured)
          outcomes.push_back({m.replies.empty() ? std::nan("")
                                                : score_replies(*cell.task, sample, m.replies,
                                                                measured[full].replies),
                              mean_kl(m.replies), m.bytes_per_token, m.bytes_constant, m.bytes_peak,
                              m.prefill_s, m.compress_s, m.decode_s});
        TRY_STATUS(progress.add(key, outcomes));
        known = progress.find(key);
      }
      for (std::size_t r = 0; r < rows.size(); ++r) {
        grid[r].push_back((*known)[r]);
        all[r].push_back((*known)[r]);
      }
      step();
    }
    cell_list.push_back(cell_json(cell, grid, rows, chances, options.seed, scores));
  }
  Json row_list = Json::array();
  for (std::size_t r = 0; r < rows.size(); ++r)
    row_list.push_back(row_json(rows[r], scores[r], all[r], decode_s[r]));
  Json result = {{"manifest", manifest},
                 {"manifest_sha256", hash},
                 {"machine", subject.machine()},
                 {"cells", cell_list},
                 {"rows", row_list}};
  mark_frontier(result);
  return result;
}

}  // namespace quire
