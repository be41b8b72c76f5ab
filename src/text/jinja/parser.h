// text/jinja/parser.h - tokens to a tree. The grammar is jinja2's; what is outside our subset is
// refused by name.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace quire::jinja {

Block parse_template(std::string_view source);  // throws Failure, with the line in its message

}  // namespace quire::jinja
