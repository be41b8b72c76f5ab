// text/special.h - finds special tokens in text: at each place the longest one, from left to right.
//
// A trie over the spellings of control and user-defined tokens. The caller says, for each
// candidate, whether it may match there: that is how text from a user never yields a control token.
//
//   SpecialMatcher matcher;
//   matcher.add("<|im_end|>", 2);
//   auto m = matcher.next(text, 0, [](TokenId, std::size_t, std::size_t) { return true; });
//   if (m.id == kNoToken) ...   // no special token from there on
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocab.h"

namespace quire {

struct SpecialMatch {
  TokenId id = kNoToken;
  std::size_t begin = 0, end = 0;
};

class SpecialMatcher {
 public:
  SpecialMatcher() : nodes_(1) {}

  void add(std::string_view spelling,
           TokenId id);  // spelling is not empty; a later id replaces an earlier one

  // The first match at or after `from` that allowed(id, begin, end) lets pass.
  template <class Allowed>
  SpecialMatch next(std::string_view text, std::size_t from, const Allowed& allowed) const {
    for (std::size_t begin = from; begin < text.size(); ++begin) {
      if (!first_.test(static_cast<unsigned char>(text[begin]))) continue;
      SpecialMatch best;
      std::uint32_t node = 0;
      for (std::size_t end = begin; end < text.size();) {
        node = child(node, text[end++]);
        if (node == 0) break;
        if (const TokenId id = nodes_[node].id; id != kNoToken && allowed(id, begin, end))
          best = {id, begin, end};
      }
      if (best.id != kNoToken) return best;
    }
    return {};
  }

 private:
  struct Node {
    TokenId id = kNoToken;
    std::uint32_t first_child = 0, next_sibling = 0;  // 0: none, for the root is nobody's child
    char byte = 0;
  };
  std::uint32_t child(std::uint32_t node, char byte) const {
    std::uint32_t c = nodes_[node].first_child;
    while (c != 0 && nodes_[c].byte != byte) c = nodes_[c].next_sibling;
    return c;
  }

  std::vector<Node> nodes_;
  std::bitset<256> first_;  // bytes a spelling starts with: most text has none of them
};

}  // namespace quire
