#include "cli/suggest.h"

#include <algorithm>
#include <vector>

namespace quire::cli {
namespace {

// Edits that turn one word into the other; swapped neighbours are one.
std::size_t typing_mistakes(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> known) {
  constexpr std::size_t kWordMax = 64;  // nobody mistypes more
  if (word.empty() || word.size() > kWordMax) return {};
  std::string best;
  std::size_t fewest = word.size() / 3 + 1;  // "serv" may be two off, "ls" one
  for (const std::string& candidate : known) {
    const bool begins = word.size() > 1 && candidate.starts_with(word);
    const std::size_t mistakes = begins ? 1 : typing_mistakes(word, candidate);
    if (mistakes < fewest || (mistakes == fewest && best.empty() && mistakes < candidate.size())) {
      fewest = mistakes;
      best = candidate;
    }
  }
  return best;
}

}  // namespace quire::cli
