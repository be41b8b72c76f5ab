// lab/board/testing.h - a vocabulary and a subject that tests can predict.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kv/retain/retain.h"
#include "lab/board/board.h"

namespace quire {

// Words are tokens 1000.., text counts up from 100000, and a fixed piece is one token per byte.
inline Vocabulary toy_vocabulary() {
  Vocabulary v;
  for (TokenId i = 0; i < 400; ++i) v.words.push_back(1000 + i);
  for (TokenId i = 0; i < 5000; ++i) v.text.push_back(100000 + i);
  v.encode = [](std::string_view text) {
    std::vector<TokenId> tokens;
    for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  };
  return v;
}

// Knows an answer if and only if every slot that holds it was kept. Rows that look at nothing but
// positions are run for real.
class ToySubject : public Subject {
 public:
  Json identity() const override { return {{"model", "toy"}}; }
  Json machine() const override { return {{"processor", "none"}}; }

  Result<std::vector<Measured>> answer(const Sample& sample,
                                       std::span<const RowSpec> rows) override {
    ++asked;
    if (asked > answers_max) return Error{Code::unavailable, "the toy broke"};
    std::vector<Measured> out;
    for (const RowSpec& row : rows) {
      Measured m;
      const std::vector<std::uint32_t> kept = keep(sample, row);
      for (const Question& q : sample.questions)
        m.replies.push_back(reply(
            sample, q, sample.context.size() > context_max ? std::vector<std::uint32_t>() : kept));
      m.bytes_per_token = 100.0 * static_cast<double>(kept.size()) /
                          static_cast<double>(std::max<std::size_t>(1, sample.context.size()));
      m.bytes_peak = 100;
      // Of the rounds that are timed, which come first, the second is undisturbed.
      if (sample.timed && row.method != "none") m.decode_s = asked == 2 ? 0.02 : 0.03;
      if (row.method == cannot) m.replies.clear();
      m.prefill_s = 2;
      m.compress_s = row.method == "full" ? 0 : 0.1;
      out.push_back(m);
    }
    return out;
  }

  std::size_t asked = 0, answers_max = SIZE_MAX;
  std::size_t context_max = SIZE_MAX;  // tokens: what is longer is forgotten
  std::string cannot;                  // a method

 private:
  static std::vector<std::uint32_t> keep(const Sample& sample, const RowSpec& row) {
    const auto n = static_cast<std::uint32_t>(sample.context.size());
    std::vector<std::uint32_t> all(n);
    for (std::uint32_t s = 0; s < n; ++s) all[s] = s;
    if (row.method == "full") return all;
    if (row.method == "none") return {};
    const RetainMethod m = find_retain_method(row.method).value();
    std::vector<std::uint8_t> marks(n);
    for (const Question& q : sample.questions)
      for (std::uint32_t s : q.answer) marks[s] = kMarkAnswer;
    std::vector<float> scores(n);
    m.score(m, {.slots = n, .seed = 9, .marks = marks}, scores);
    const std::vector<std::uint32_t> begin = {0, n};
    return choose(m, {1, scores, {}, begin}, budget_slots(n, row.share)).slots;
  }

  static Reply reply(const Sample& sample, const Question& q,
                     const std::vector<std::uint32_t>& kept) {
    const bool knows =
        !kept.empty() && std::includes(kept.begin(), kept.end(), q.answer.begin(), q.answer.end());
    const double share =
        static_cast<double>(kept.size()) / static_cast<double>(sample.context.size());
    Reply r;
    for (std::size_t c = 0; c < q.candidates.size(); ++c) {
      float nll = c != q.right ? 2.0f : knows ? 0.1f : 3.0f;
      if (q.answer.empty()) nll = static_cast<float>(3 - share);
      r.nll.emplace_back(q.candidates[c].size(), nll);
    }
    for (TokenId t : q.candidates[q.right]) r.top.push_back(knows ? t : 0);
    r.kl.assign(r.top.size(), static_cast<float>(1 - share));
    return r;
  }
};

}  // namespace quire
