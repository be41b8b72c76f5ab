// engine/draft/repeats.h - finds where the end of a text stood before, in the same text or in another.
//
// A hash chain over runs of `least` tokens: adding a token and finding the longest repetition take the
// same time however long the text is. Used by prompt lookup and predictions.
//
//   Repeats repeats(3, 24);
//   repeats.read(text);                          // grows with the text
//   Repeat r = repeats.find(text, text);         // text[r.at] came after the same r.length tokens
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"

namespace quire {

struct Repeat {
  std::uint32_t at = 0;      // where the text goes on
  std::uint32_t length = 0;  // tokens before it that are equal; 0: none
};

class Repeats {
 public:
  Repeats(std::uint32_t least, std::uint32_t most) : least_(least), most_(most) {}

  // The text as it is now; it begins with what was read before.
  void read(std::span<const TokenId> text);
  // The longest repetition of the end of `tail` in `text`, which has been read; of equals the latest.
  // Only places that something comes after.
  Repeat find(std::span<const TokenId> text, std::span<const TokenId> tail) const;

 private:
  std::uint64_t bucket(const TokenId* end) const;
  void link(std::span<const TokenId> text, std::uint32_t end);

  std::uint32_t least_, most_;
  std::vector<std::uint32_t> heads_;   // by bucket: where the latest run ends; 0: none
  std::vector<std::uint32_t> before_;  // by end of a run: the one before it in its bucket
};

}  // namespace quire
