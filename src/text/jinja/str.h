// text/jinja/str.h - a string that remembers which of its bytes came from data.
//
// What the template's author wrote may hold control tokens; what a user wrote may not. So every
// string a template computes carries runs of origins, and each operation copies ranges together
// with theirs.
//
//   Str s("<|user|>", Origin::template_text);
//   s.append(message, Origin::data);          // s.runs() now has two runs
//   Str tail = s.slice(4, s.size());          // byte offsets; origins follow
//
// A piece of data may also name its source, a number of the caller's: where it shows up in the
// output, the run says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/meter.h"

namespace quire::jinja {

enum class Origin : std::uint8_t { template_text, data };

class Str {
 public:
  struct Run {
    std::size_t end;  // first byte after the run
    Origin origin;
    std::uint32_t source = 0;  // 0: none
  };

  Str() = default;
  Str(std::string_view text, Origin origin, std::uint32_t source = 0) {
    append(text, origin, source);
  }

  std::string_view text() const { return text_; }
  std::size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  const Vector<Run>& runs() const { return runs_; }
  bool has_data() const;
  Origin origin() const { return has_data() ? Origin::data : Origin::template_text; }
  Origin origin_at(std::size_t byte) const;

  void append(std::string_view text, Origin origin, std::uint32_t source = 0);
  void append(const Str& s) { append(s, 0, s.size()); }
  void append(const Str& s, std::size_t from, std::size_t to);
  Str slice(std::size_t from, std::size_t to) const;

  // Already escaped for HTML: what `safe` and `escape` return. `+` with such a string escapes the
  // other side.
  bool markup = false;

 private:
  std::basic_string<char, std::char_traits<char>, Counted<char>> text_;
  Vector<Run> runs_;  // neighbours differ in origin or source; the last one ends at size()
};

}  // namespace quire::jinja
