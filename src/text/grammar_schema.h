// text/grammar_schema.h - a client's JSON schema, brought into the shape that Grammar promises.
#pragma once

#include "base/json.h"
#include "base/result.h"

namespace quire {

// Bounds the schema's size and depth, allows anything in objects and arrays without constraints,
// and with `strict` refuses keywords that a grammar cannot enforce (the error names the first).
Result<Json> prepare_schema(const Json& schema, bool strict);

}  // namespace quire
