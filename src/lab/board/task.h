// lab/board/task.h - what the leaderboard asks a model: suite v1, as generators with seeds.
//
// A sample is a context, which a method may compress, and questions after it. The candidates of a
// question are ranked by their likelihood under the model; a single candidate is scored token by
// token. Small models cannot follow instructions, but they can copy and look up, so every task is
// bare text. Generators know no tokenizer; a Vocabulary gives them words that are one token each. A
// sample depends only on its seed, not on the samples made before it.
//
//   for (const Task& task : suite_tasks())
//     for (const Level& level : task.levels)
//       Sample sample = make_sample(task, level, vocabulary, seed, index);
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/token.h"

namespace quire {

struct Vocabulary {
  std::vector<TokenId> words;  // frequent words with a space before them, one token each
  std::vector<TokenId> text;   // natural text, long enough for the longest context
  std::function<std::vector<TokenId>(std::string_view)> encode;  // for the few fixed pieces
};

struct Question {
  std::vector<TokenId> prompt = {};                   // read after the context; may be empty
  std::vector<std::vector<TokenId>> candidates = {};  // all alike in length
  std::uint32_t right = 0;
  std::uint32_t skip = 0;                  // of a single candidate, tokens that are not scored
  std::vector<std::uint32_t> answer = {};  // where the context holds it, ascending: for the oracle
};

struct Sample {
  std::vector<TokenId> context;
  std::vector<Question> questions;
  bool timed = false;   // it is asked to see how fast answers come
  bool stream = false;  // what is scored is read with a capped cache, by those who can
};

enum class Metric : std::uint8_t {
  likelihood,  // minus the mean NLL of the scored tokens
  accuracy,    // share of scored tokens that were the best one
  agreement,   // share of scored tokens whose best one is the whole cache's
  ranking,     // share of questions whose right candidate was likeliest
};

struct Level {
  std::string_view name;
  std::uint32_t context = 0;  // tokens of text or filler
  std::uint32_t size = 0;     // tokens to copy or continue, or pairs to look up
  std::uint32_t extra = 0;    // depth in percent, tokens per value, questions, or hops
};

struct Task {
  std::string_view id, name, summary;
  Metric metric;
  std::span<const Level> levels;  // easiest first
  Sample (*make)(const Vocabulary&, const Level&, Random&);
};

std::span<const Task> suite_tasks();

Sample make_sample(const Task& task, const Level& level, const Vocabulary& vocabulary,
                   std::uint64_t seed, std::uint32_t index);

// What guessing scores: one over the number of candidates, or 0.
double chance(const Task& task, const Sample& sample);

}  // namespace quire
