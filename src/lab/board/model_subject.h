// lab/board/model_subject.h - a real model behind the leaderboard.
//
// A context is read once per format; every row with that format begins with a fork of it. Signals
// are gathered once, and scores are computed once per method for all budgets. The last token of a
// context is read after compression, so that even the first token of an answer sees the compressed
// cache.
//
//   ModelSubject subject(*runtime);
//   TRY(Vocabulary v, read_vocabulary(*runtime, text));
//   TRY(Json result, run_board(subject, v, default_rows(shares), {.out = "board"}));
#pragma once

#include <string>

#include "engine/runtime.h"
#include "lab/board/board.h"

namespace quire {

class ModelSubject : public Subject {
 public:
  explicit ModelSubject(Runtime& runtime) : runtime_(runtime) {}

  Json identity() const override;
  Json machine() const override;
  Result<std::vector<Measured>> answer(const Sample& sample,
                                       std::span<const RowSpec> rows) override;

 private:
  Result<std::vector<Measured>> stream(const Sample& sample, std::span<const RowSpec> rows);

  Runtime& runtime_;
};

// Words that this model writes as one token each, the most frequent of the text first, and the text.
Result<Vocabulary> read_vocabulary(const Runtime& runtime, const std::string& text);

// Formats that the model's pages can be stored in, and combinations worth a row.
std::vector<RowSpec> model_rows(const Runtime& runtime, std::span<const double> shares);

}  // namespace quire
