// lab/board/progress.h - the answers so far, so that a run that stopped can go on.
//
// Outcomes by sample, kept as lines of JSON. The first line names the manifest; a file of another
// run is refused. A last line that a crash cut short is dropped, and its sample is asked again.
//
//   TRY(Progress progress, Progress::open(folder, hash, rows.size()));
//   if (!progress.find(key)) TRY_STATUS(progress.add(key, outcomes));
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace quire {

// What one row made of one sample.
struct Outcome {
  double score = 0, kl = 0, bytes = 0, constant = 0, peak = 0, prefill_s = 0, compress_s = 0;
  double decode_s = 0;

  bool asked() const { return !std::isnan(score); }  // a row that cannot do a task is not asked
};
inline constexpr double Outcome::*kOutcomeFields[] = {
    &Outcome::score, &Outcome::kl,        &Outcome::bytes,      &Outcome::constant,
    &Outcome::peak,  &Outcome::prefill_s, &Outcome::compress_s, &Outcome::decode_s};

class Progress {
 public:
  // An empty folder: nothing is kept.
  static Result<Progress> open(const std::string& folder, const std::string& manifest,
                               std::size_t rows);

  const std::vector<Outcome>* find(const std::string& key) const;  // by row
  Status add(const std::string& key, const std::vector<Outcome>& outcomes);

 private:
  bool take(const Json& line, std::size_t rows);

  std::string path_, text_;
  std::map<std::string, std::vector<Outcome>> done_;
};

}  // namespace quire
