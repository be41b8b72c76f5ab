// text/jinja/text_functions.h - str's methods on strings that carry origins; used by the methods
// and the filters.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "text/jinja/str.h"
#include "text/jinja/value.h"

namespace quire::jinja {

enum class Side : std::uint8_t { left, right, both };
enum class Case : std::uint8_t { upper, lower, title, capitalize, swap };

// Where `needle` is found first or last, or npos; in linear time whatever they hold.
std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from = 0);
std::size_t find_text_back(std::string_view text, std::string_view needle);

Str strip(const Str& s, Side side, const Str* characters);  // white space when null
Str change_case(const Str& s, Case to);
Str replace(const Str& s, const Str& from, const Str& to, Int count);  // count < 0: all
Str escape_html(const Str& s);
Str pad(const Str& s, Int width, Side side,
        const Str& fill);  // `side` is where the fill goes; both centers
Str join(const Vector<Str>& parts, const Str& separator);
Vector<Str> split(const Str& s, const Str& separator, Int count);
Vector<Str> split_back(const Str& s, const Str& separator, Int count);
Vector<Str> split_space(const Str& s, Int count);
Vector<Str> split_space_back(const Str& s, Int count);
Vector<Str> split_lines(const Str& s, bool keep_ends);

}  // namespace quire::jinja
