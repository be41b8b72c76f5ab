// text/bpe.h - merges neighbouring tokens, best pair first, until nothing merges.
//
// The order is that of `tokenizers` and of sentencepiece: of all neighbouring pairs the one with
// the lowest rank merges first, of equals the leftmost. Short inputs (nearly all words) scan an
// array; long ones use a heap, so that a megabyte without a space costs n log n.
//
//   BpeScratch scratch;
//   scratch.symbols = {{.id = h, .length = 1}, {.id = i, .length = 1}};
//   bpe_merge(scratch, [&](const BpeSymbol& l, const BpeSymbol& r) {
//     return merges.find(l.id, r.id);
//   });
//   scratch.symbols;   // the merged tokens
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "text/token_map.h"

namespace quire {

struct BpeSymbol {
  TokenId id = kNoToken;  // kNoToken: a character without a token, which merges with nothing
  std::uint32_t begin = 0, length = 0;  // its bytes in the text
};

struct BpeScratch {
  std::vector<BpeSymbol> symbols;

  // A symbol that might merge with the next one. Small, as a long word has one per byte.
  struct Candidate {
    std::uint32_t rank, left;
    bool operator<(const Candidate& o) const {
      return rank != o.rank ? rank > o.rank : left > o.left;
    }  // a min-heap
  };
  std::vector<Merge> merges;
  std::vector<Candidate> heap;
  std::vector<std::uint32_t> previous, next;
};

// Scans all pairs for each merge: fast while everything stays in a few cache lines.
template <class Rank>
void bpe_merge_short(BpeScratch& s, const Rank& rank) {
  std::vector<BpeSymbol>& symbols = s.symbols;
  const auto rank_at = [&](std::size_t i) { return rank(symbols[i], symbols[i + 1]); };
  s.merges.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) s.merges.push_back(rank_at(i));
  while (!s.merges.empty()) {
    const auto best =
        std::min_element(s.merges.begin(), s.merges.end(),
                         [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->id == kNoToken) break;
    const auto i = static_cast<std::size_t>(best - s.merges.begin());
    symbols[i].id = best->id;
    symbols[i].length += symbols[i + 1].length;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    s.merges.erase(best);
    if (i < s.merges.size()) s.merges[i] = rank_at(i);
    if (i > 0) s.merges[i - 1] = rank_at(i - 1);
  }
}

template <class Rank>
void bpe_merge_long(BpeScratch& s, const Rank& rank) {
  std::vector<BpeSymbol>& symbols = s.symbols;
  CHECK(symbols.size() < UINT32_MAX);
  const auto count = static_cast<std::uint32_t>(symbols.size());
  constexpr std::uint32_t kEnd = UINT32_MAX;
  s.previous.resize(count);
  s.next.resize(count);
  s.heap.clear();
  s.heap.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    s.previous[i] = i == 0 ? kEnd : i - 1;
    s.next[i] = i + 1 == count ? kEnd : i + 1;
    if (i + 1 < count)
      if (const Merge m = rank(symbols[i], symbols[i + 1]); m.id != kNoToken)
        s.heap.push_back({m.rank, i});
  }
  std::make_heap(s.heap.begin(), s.heap.end());
  const auto push = [&](std::uint32_t left, std::uint32_t right) {
    if (left == kEnd || right == kEnd) return;
    const Merge m = rank(symbols[left], symbols[right]);
    if (m.id == kNoToken) return;
    s.heap.push_back({m.rank, left});
    std::push_heap(s.heap.begin(), s.heap.end());
  };
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end());
    const auto best = s.heap.back();
    s.heap.pop_back();
    const std::uint32_t right = s.next[best.left];
    // The symbol may have been swallowed (length 0), or may have another neighbour by now.
    if (symbols[best.left].length == 0 || right == kEnd) continue;
    const Merge m = rank(symbols[best.left], symbols[right]);
    if (m.id == kNoToken || m.rank != best.rank) continue;
    symbols[best.left].id = m.id;
    symbols[best.left].length += symbols[right].length;
    symbols[right].length = 0;
    const std::uint32_t after = s.next[right];
    s.next[best.left] = after;
    if (after != kEnd) s.previous[after] = best.left;
    push(s.previous[best.left], best.left);
    push(best.left, after);
  }
  std::erase_if(symbols, [](const BpeSymbol& symbol) { return symbol.length == 0; });
}

template <class Rank>
void bpe_merge(BpeScratch& scratch, const Rank& rank) {
  constexpr std::size_t kShort = 32;
  if (scratch.symbols.size() <= kShort)
    bpe_merge_short(scratch, rank);
  else
    bpe_merge_long(scratch, rank);
}

}  // namespace quire
