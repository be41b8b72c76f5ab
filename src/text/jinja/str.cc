#include "text/jinja/str.h"

#include <algorithm>

#include "base/check.h"

namespace quire::jinja {

bool Str::has_data() const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const Run& r) { return r.origin == Origin::data; });
}

Origin Str::origin_at(std::size_t byte) const {
  DCHECK(byte < size());
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), byte,
                                    [](std::size_t at, const Run& r) { return at < r.end; });
  return run->origin;
}

void Str::append(std::string_view text, Origin origin, std::uint32_t source) {
  if (text.empty()) return;
  charge(1 + text.size() / 64);
  text_.append(text);
  if (!runs_.empty() && runs_.back().origin == origin && runs_.back().source == source)
    runs_.back().end = text_.size();
  else
    runs_.push_back({text_.size(), origin, source});
}

void Str::append(const Str& s, std::size_t from, std::size_t to) {
  DCHECK(from <= to && to <= s.size() && &s != this);
  auto run = std::upper_bound(s.runs_.begin(), s.runs_.end(), from,
                              [](std::size_t at, const Run& r) { return at < r.end; });
  for (; from < to; ++run) {
    const std::size_t end = std::min(run->end, to);
    append(s.text().substr(from, end - from), run->origin, run->source);
    from = end;
  }
}

Str Str::slice(std::size_t from, std::size_t to) const {
  Str out;
  out.append(*this, from, to);
  return out;
}

}  // namespace quire::jinja
