// lab/load/prompt.h - text and token ids to ask with: made up from a seed, of a wanted length.
//
// Texts of different seeds share no beginning worth caching; the same seed always gives the same
// words. The number of tokens per word depends on the server's tokenizer, so the server is asked
// once (Calibration).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire::load {

// A part of a prompt: `tokens` tokens that are a function of `seed`, or words of its own.
struct Part {
  std::string role;  // whose words, where the API knows roles
  std::uint64_t seed = 0;
  std::uint32_t tokens = 0;
  std::string text;  // used as it is when not empty
};

// What one request of `words` words was counted as: tokens = fixed + per_word * words.
struct Calibration {
  double per_word = 1, fixed = 0;
};

// Common English words, most of them one token wherever English was in the training data.
std::string make_words(std::uint64_t seed, std::uint32_t count);
std::vector<std::uint32_t> make_ids(std::uint64_t seed, std::uint32_t count,
                                    std::uint32_t vocabulary);

// The text of a part that should count as `part.tokens` tokens.
std::string part_text(const Part& part, const Calibration& calibration);

}  // namespace quire::load
