// lab/board/asking.h - asks many forks of a context at once, in batched steps.
//
// ModelSubject adds a question for a row, run() computes all questions, and the replies come back
// in the order in which the questions were added.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "engine/retain.h"
#include "engine/runtime.h"
#include "engine/selecting.h"
#include "engine/stepper.h"
#include "lab/board/stats.h"
#include "lab/board/task.h"

namespace quire {

// What the whole cache said at one place: tokens that matter, and the rest in one.
struct Distribution {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  double rest = 0;  // probability of all others
};

class Asking {
 public:
  explicit Asking(Runtime& runtime) : runtime_(runtime), stepper_(runtime) {}

  // `s` has read the context as the row stores it. `lead` is read first: the last token of the
  // context and the part of the question that was not read yet. If `keep`, `full` is filled;
  // otherwise the reply is compared with it.
  Status add(Sequence s, std::vector<TokenId> lead, const Question& question,
             std::vector<Distribution>* full, bool keep, Reply* reply,
             const std::optional<Selecting>& select = {});
  Status run();  // computes all questions that were added since the last run

  // Reads one long candidate in parts; between parts the policy decides which tokens stay. Returns
  // the most bytes that the sequence held.
  Result<double> stream(Sequence& s, Retaining* retain, const Sample& sample, std::uint32_t rows,
                        std::vector<Distribution>& full, bool keep, Reply& reply);

 private:
  struct Item {
    Sequence sequence;
    std::vector<TokenId> tokens;  // to be read
    std::uint32_t scored;         // how many of the last logits count
    const Question* question;
    std::uint32_t candidate;  // kEvery: all of them, of one token each
    std::vector<Distribution>* full;
    bool keep;
    Reply* reply;
    std::optional<Selecting> select;
  };
  static constexpr std::uint32_t kEvery = 0xffffffffu;

  void score(const Item& item, std::span<const float> logits, std::uint32_t first_row);

  Runtime& runtime_;
  Stepper stepper_;
  std::deque<Item> items_;
  std::size_t rows_ = 0;
};

}  // namespace quire
