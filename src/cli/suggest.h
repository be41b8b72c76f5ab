// cli/suggest.h - finds the word that a mistyped word was probably meant to be. For commands and
// options.
//
//   nearest("serv", {"serve", "selftest"})     // "serve"
//   nearest("frobnicate", {"serve", "run"})    // "": nothing is near
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire::cli {

// The known word with the fewest typing mistakes (letters left out, added, changed or swapped), or
// an empty string when none is near. A known word that the given one begins or ends like is near,
// too.
std::string nearest(std::string_view word, std::span<const std::string> known);

}  // namespace quire::cli
