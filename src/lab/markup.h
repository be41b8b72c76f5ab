// lab/markup.h - text inside HTML and SVG, for the pages and pictures that the lab draws.
#pragma once

#include <string>

namespace quire {

// "a < b" as "a &lt; b"; also fit for an attribute between double quotes.
inline std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&'   ? "&amp;"
           : c == '<' ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  return out;
}

}  // namespace quire
