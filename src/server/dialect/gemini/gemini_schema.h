// server/dialect/gemini/gemini_schema.h - Gemini's schemas as JSON schemas.
//
// Gemini writes types in capitals ("INTEGER"), counts as strings ("minItems": "2"), `nullable`,
// `propertyOrdering`, and formats that are no formats of texts ("int32"). JSON schemas pass
// unchanged, so the function is for both.
//
//   json_schema_of({{"type", "STRING"}, {"nullable", true}})
//       // {"anyOf": [{"type": "string"}, {"type": "null"}]}
#pragma once

#include "base/json.h"

namespace quire::gemini {

Json json_schema_of(const Json& schema);

}  // namespace quire::gemini
