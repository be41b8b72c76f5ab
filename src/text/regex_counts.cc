#include "text/regex_counts.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace quire {
namespace {

constexpr std::size_t kBytesMax = 8 << 10;
constexpr unsigned kCopiesMax = 64;
constexpr unsigned kNoEnd = 0xffffffffu;

struct Count {
  unsigned least = 0, most = 0;  // kNoEnd: any number
  std::size_t length = 0;        // of its text
};

// {m}, {m,} or {m,n} at the beginning of the text.
std::optional<Count> read_count(std::string_view text) {
  const std::size_t close = text.find('}');
  if (text.empty() || text[0] != '{' || close == text.npos) return {};
  const char *at = text.data() + 1, *end = text.data() + close;
  Count count{.length = close + 1};
  const auto number = [&](unsigned& into) {
    const auto [next, error] = std::from_chars(at, end, into);
    at = next;
    return error == std::errc();
  };
  if (!number(count.least)) return {};
  count.most = count.least;
  if (at != end && *at == ',') {
    ++at;
    count.most = kNoEnd;
    if (at != end && !number(count.most)) return {};
  }
  if (at != end) return {};
  return count;
}

std::string times(const std::string& text, unsigned count) {
  std::string out;
  while (count-- > 0) out += text;
  return out;
}

std::string unfolded(const std::string& group, const Count& c) {
  if (c.most == kNoEnd) return c.least == 0 ? group + "*" : times(group, c.least - 1) + group + "+";
  std::string rest;
  for (unsigned i = c.least; i < c.most; ++i) rest = "(" + group + rest + ")?";
  return times(group, c.least) + rest;
}

}  // namespace

std::string unfold_counts(std::string_view regex) {
  std::string out;
  std::vector<std::size_t> open;  // where groups began in `out`
  for (std::size_t i = 0; i < regex.size();) {
    const char c = regex[i];
    if (c == '\\') {
      out += regex.substr(i, 2);
      i += 2;
    } else if (c == '[') {
      std::size_t end = i + 1 + (regex.substr(i + 1, 1) == "^");
      if (regex.substr(end, 1) == "]") return std::string(regex);  // means different things
      while (end < regex.size() && regex[end] != ']') end += regex[end] == '\\' ? 2 : 1;
      if (end >= regex.size()) return std::string(regex);
      out += regex.substr(i, end + 1 - i);
      i = end + 1;
    } else if (c == '(') {
      open.push_back(out.size());
      out += c;
      ++i;
    } else if (c == ')') {
      if (open.empty()) return std::string(regex);
      out += c;
      ++i;
      const std::string group = out.substr(open.back());
      const bool plain = group[1] != '?' || group[2] == ':';  // not one that only looks ahead
      const std::optional<Count> count = read_count(regex.substr(i));
      if (count && plain) {
        const std::string_view after = regex.substr(i + count->length, 1);
        const unsigned copies = count->most == kNoEnd ? std::max(1u, count->least) : count->most;
        if (copies > 0 && copies <= kCopiesMax && count->least <= count->most &&
            copies * (group.size() + 3) + out.size() <= kBytesMax && after != "?" && after != "+") {
          out.replace(open.back(), group.size(), unfolded(group, *count));
          i += count->length;
        }
      }
      open.pop_back();
    } else {
      out += c;
      ++i;
    }
  }
  return out.size() > kBytesMax ? std::string(regex) : out;
}

}  // namespace quire
