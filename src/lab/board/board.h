// lab/board/board.h - a run of the leaderboard: the same samples for every row, resumable.
//
// A Subject answers the questions: it reads a sample's context once and answers for many rows, so
// that these share a prefill. Answers are kept in OUT/progress.jsonl and are not asked again as
// long as the manifest is the same. The result is JSON (lab/board/report.h renders it).
//
//   TRY(Json result, run_board(subject, vocabulary, default_rows(), {.out = "board"}));
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "lab/board/stats.h"
#include "lab/board/task.h"

namespace quire {

// One line of the table. "full" and "none" (no context at all) are rows too.
struct RowSpec {
  std::string method = {};  // a retention method, a format, or both joined by '+'
  double share = 1;         // of the slots that are kept
  bool aware = false;       // the question was visible when the context was compressed

  std::string name() const;  // "snapkv 20 %"
  bool operator==(const RowSpec&) const = default;
};

// Anchors first: full, none, random and oracle at half, streaming; then every method at each share.
std::vector<RowSpec> default_rows(std::span<const double> shares);

struct Measured {
  std::vector<Reply> replies;  // by question
  double bytes_per_token = 0;  // that the sequence holds after compression, from the allocator
  double bytes_constant = 0;   // that do not grow with the context (window layers)
  double bytes_peak = 0;       // most at any time while reading and compressing, per token
  double prefill_s = 0, compress_s = 0;
  double decode_s = 0;  // of one token, where the sample is timed
};

class Subject {
 public:
  virtual ~Subject() = default;
  virtual Json identity() const = 0;  // model digest, format, version: what fixes the answers
  virtual Json machine() const = 0;   // processor, threads: what does not
  // One Measured per row, in order.
  virtual Result<std::vector<Measured>> answer(const Sample& sample,
                                               std::span<const RowSpec> rows) = 0;
};

struct BoardOptions {
  std::string tier = "standard";  // smoke, standard or full
  std::uint64_t seed = 1;
  std::string out = {};  // folder for progress; empty: nothing is kept
  std::function<void(std::size_t done, std::size_t all)> progress = {};
};

Result<Json> run_board(Subject& subject, const Vocabulary& vocabulary,
                       std::span<const RowSpec> rows, const BoardOptions& options);

}  // namespace quire
