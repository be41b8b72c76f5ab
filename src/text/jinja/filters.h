// text/jinja/filters.h - the tables of filters, by file.
#pragma once

#include <string_view>

#include "text/jinja/callable.h"

namespace quire::jinja {

const Function* find_sequence_filter(std::string_view name);   // sequence_filters.cc
Value tojson_filter(Runtime& rt, const Value& v, Args& args);  // dump_json.cc

}  // namespace quire::jinja
