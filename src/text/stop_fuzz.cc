// Stop strings and text from the input, in random parts, against looking at every ending of the
// text.
#include <cstdint>

#include "base/check.h"
#include "text/stop.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t seed = data[0];
  // Lines are stop strings up to an empty line; the rest is the text.
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> strings;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) break;
    strings.emplace_back(line);
  }
  const auto made = StopStrings::create(strings);
  if (!made.ok()) return 0;

  std::string want(rest);
  std::optional<std::size_t> which;
  for (std::size_t end = 1; end <= rest.size() && !which; ++end) {
    for (std::size_t i = 0; i < strings.size(); ++i)
      if (rest.substr(0, end).ends_with(strings[i]) &&
          (!which || strings[i].size() > strings[*which].size()))
        which = i;
    if (which) want = rest.substr(0, end - strings[*which].size());
  }

  StopMatcher matcher(made.value());
  std::string out;
  std::optional<std::size_t> hit;
  for (std::size_t at = 0, n = 1; at < rest.size() && !hit; at += n) {
    n = 1 + (seed * (at + 1) >> 3) % 7;
    hit = matcher.add(rest.substr(at, n), out);
    CHECK(want.starts_with(out));
    // Nothing is held back without need: what is held is the beginning of a stop string.
    const std::string_view held =
        std::string_view(rest).substr(0, std::min(at + n, rest.size())).substr(out.size());
    bool begins = held.empty() || hit;
    for (const std::string& s : strings) begins = begins || (!hit && s.starts_with(held));
    CHECK(begins);
  }
  if (!hit) matcher.finish(out);
  CHECK(out == want);
  CHECK(hit == which);
  return 0;
}
