#include "lab/load/prompt.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/random.h"

namespace quire::load {
namespace {

constexpr std::string_view kWords[] = {
    "the",     "people",  "water",    "because", "little", "found",   "house",   "world",
    "between", "place",   "again",    "school",  "number", "never",   "great",   "under",
    "while",   "night",   "light",    "story",   "every",  "country", "later",   "change",
    "father",  "mother",  "city",     "should",  "answer", "study",   "learn",   "plant",
    "cover",   "food",    "sun",      "four",    "state",  "keep",    "eyes",    "last",
    "let",     "thought", "tree",     "cross",   "farm",   "hard",    "start",   "might",
    "far",     "sea",     "draw",     "left",    "late",   "run",     "don",     "press",
    "close",   "real",    "life",     "few",     "north",  "open",    "seem",    "together",
    "next",    "white",   "children", "begin",   "got",    "walk",    "example", "ease",
    "paper",   "group",   "always",   "music",   "those",  "both",    "mark",    "often",
    "letter",  "until",   "mile",     "river",   "car",    "feet",    "care",    "second",
    "book",    "carry",   "took",     "science", "eat",    "room",    "friend",  "began",
    "idea",    "fish",    "mountain", "stop",    "once",   "base",    "hear",    "horse",
    "cut",     "sure",    "watch",    "color",   "face",   "wood",    "main",    "enough",
    "plain",   "girl",    "usual",    "young",   "ready",  "above",   "ever",    "red",
    "list",    "though",  "feel",     "talk",    "bird"};

}  // namespace

std::string make_words(std::uint64_t seed, std::uint32_t count) {
  Random random(seed);
  std::string text;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random.below(std::size(kWords))];
  }
  return text;
}

std::vector<std::uint32_t> make_ids(std::uint64_t seed, std::uint32_t count,
                                    std::uint32_t vocabulary) {
  // Where special tokens and bytes usually live.
  const std::uint32_t special = std::min(256u, vocabulary / 4);
  Random random(seed);
  std::vector<std::uint32_t> ids(count);
  for (std::uint32_t& id : ids)
    id = special + static_cast<std::uint32_t>(random.below(vocabulary - special));
  return ids;
}

std::string part_text(const Part& part, const Calibration& calibration) {
  if (!part.text.empty()) return part.text;
  const double words = std::round(part.tokens / calibration.per_word);
  return make_words(part.seed, static_cast<std::uint32_t>(std::max(words, 1.0)));
}

}  // namespace quire::load
