// Random inserts, erases and matches against a set of token strings. Keys are cut to a few bits, so
// that they collide.
#include <algorithm>
#include <map>
#include <vector>

#include "base/random.h"
#include "kv/index.h"

namespace {
using namespace quire;
constexpr std::uint32_t kBlock = 2, kDepth = 4;

BlockKey key_of(std::span<const TokenId> tokens) {
  std::uint64_t sum = 0;
  for (const TokenId t : tokens) sum = mix64(sum ^ t);
  BlockKey k;
  k.bytes[0] = static_cast<std::uint8_t>(sum & 15);
  return k;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  PrefixIndex index({.node_capacity = 48, .tokens_per_block = kBlock});
  const NodeId root = index.add_root();
  std::map<std::vector<TokenId>, NodeId> known;  // by all tokens from the root
  for (std::size_t at = 0; at + 3 <= size; at += 3) {
    // Two bits per token: up to kDepth blocks of two tokens.
    const std::uint32_t bits = data[at + 1] | data[at + 2] << 8;
    std::vector<TokenId> tokens;
    for (std::uint32_t i = 0; i < kBlock * kDepth; ++i) tokens.push_back(bits >> (2 * i) & 3);
    std::vector<BlockKey> keys;
    for (std::uint32_t b = 1; b <= kDepth; ++b)
      keys.push_back(key_of(std::span(tokens).first(b * kBlock)));
    const TokenChain chain{keys, tokens, {}};

    std::vector<NodeId> path(kDepth);
    const std::size_t matched = index.match(root, chain, path);
    std::size_t expected = 0;
    while (expected < kDepth &&
           known.count({tokens.begin(),
                        tokens.begin() + static_cast<std::ptrdiff_t>((expected + 1) * kBlock)}))
      ++expected;
    CHECK(matched == expected);
    const NodeId last = matched == 0 ? root : path[matched - 1];

    // The longest common prefix below the last match, by looking at everything.
    if (matched < kDepth) {
      const auto rest = std::span<const TokenId>(tokens).subspan(matched * kBlock, kBlock);
      std::uint32_t best = 0;
      for (const auto& [t, n] : known)
        if (t.size() == (matched + 1) * kBlock && index.parent(n) == last)
          best = std::max(
              best,
              static_cast<std::uint32_t>(
                  std::mismatch(rest.begin(), rest.end(), t.end() - kBlock).first - rest.begin()));
      CHECK(index.longest_child(last, 0, rest).tokens == best);
    }
    if (data[at] % 4 < 3 && matched < kDepth) {
      const NodeId n = index.insert(last, keys[matched], 0, &tokens[matched * kBlock]);
      CHECK((n == kNoNode) == (known.size() == 47));
      if (n != kNoNode) {
        index.expose(n);
        tokens.resize((matched + 1) * kBlock);
        known[tokens] = n;
      }
    } else if (matched > 0 && index.children(last) == 0) {
      index.hide(last);
      index.erase(last);
      tokens.resize(matched * kBlock);
      known.erase(tokens);
    }
  }
  index.check();
  return 0;
}
