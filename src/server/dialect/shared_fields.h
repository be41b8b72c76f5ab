// server/dialect/shared_fields.h - fields that several vendors have under names of their own, with the
// same bounds everywhere. Parsers of dialects use it.
//
//   FloatField fields[] = {{"temperature", 0, 2, &SamplingOptions::temperature}, ...};
//   take_numbers(f, fields, asked.sampling);
//   take_stops(f, "stop_sequences", asked.stop);
//   return finish_fields(f, context);
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/dialect/dialect.h"
#include "server/fields.h"

namespace quire {

struct FloatField {
  const char* name;
  double low, high;
  float SamplingOptions::*into;
};
void take_numbers(Fields& f, std::span<const FloatField> fields, SamplingOptions& into);
void take_top_p(Fields& f, const char* name, SamplingOptions& into);  // above 0, up to 1
// A number below 0 stands for all tokens, where clients send one.
void take_top_k(Fields& f, const char* name, SamplingOptions& into);
// `negative_is_none`: -1 and the like ask for any seed.
void take_seed(Fields& f, GenerationRequest& asked, bool negative_is_none = false);
// A text, or a list of up to 16 texts of 1 to 256 bytes.
void take_stops(Fields& f, const char* name, std::vector<std::string>& into);

// The end of every parser: fields that nobody asked for (--strict-fields), and the first error.
std::optional<ApiError> finish_fields(Fields& f, const ParseContext& context);

}  // namespace quire
