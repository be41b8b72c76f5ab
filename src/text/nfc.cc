#include "text/nfc.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr std::size_t kMarksMax = 1024;

struct Free {
  void operator()(utf8proc_uint8_t* p) const { std::free(p); }
};

void append_normalized(std::string_view run, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                   static_cast<utf8proc_ssize_t>(run.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(mapped);
  if (size < 0)
    out.append(run);
  else
    out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
}

}  // namespace

void append_nfc(std::string_view text, std::string& out) {
  // ASCII composes with nothing before it: text is cut there, and only stretches with other
  // characters are normalized.
  std::size_t done = 0, at = 0;
  while (at < text.size()) {
    while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
    if (at == text.size()) break;
    const std::size_t begin =
        at == 0 ? 0 : at - 1;  // with the character that marks may combine with
    std::size_t marks = 0, marks_max = 0;
    while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80) {
      const Utf8Step step = utf8_step(text.substr(at));
      if (step.kind != Utf8Kind::whole) break;
      const auto point = static_cast<utf8proc_int32_t>(utf8_decode(text.substr(at, step.length)));
      marks = utf8proc_get_property(point)->combining_class == 0 ? 0 : marks + 1;
      marks_max = std::max(marks_max, marks);
      at += step.length;
    }
    if (at > begin && marks_max <= kMarksMax && begin >= done) {
      out.append(text.substr(done, begin - done));
      append_normalized(text.substr(begin, at - begin), out);
      done = at;
    }
    if (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80)
      ++at;  // a byte that is not UTF-8
  }
  out.append(text.substr(done));
}

}  // namespace quire
