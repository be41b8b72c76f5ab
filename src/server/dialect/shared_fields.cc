#include "server/dialect/shared_fields.h"

namespace quire {

void take_numbers(Fields& f, std::span<const FloatField> fields, SamplingOptions& into) {
  for (const FloatField& field : fields)
    if (const auto number = f.number(field.name, field.low, field.high))
      into.*field.into = static_cast<float>(*number);
}

void take_top_p(Fields& f, const char* name, SamplingOptions& into) {
  const FloatField field[] = {{name, 0, 1, &SamplingOptions::top_p}};
  take_numbers(f, field, into);
  if (into.top_p == 0) f.refuse(name, "must be above 0");
}

void take_top_k(Fields& f, const char* name, SamplingOptions& into) {
  if (const auto top_k = f.integer(name, -1, 1 << 30))
    into.top_k = *top_k < 0 ? 0 : static_cast<std::uint32_t>(*top_k);
}

void take_seed(Fields& f, GenerationRequest& asked, bool negative_is_none) {
  const auto seed = f.integer("seed", INT64_MIN, INT64_MAX);
  if (!seed || (negative_is_none && *seed < 0)) return;
  asked.sampling.seed = static_cast<std::uint64_t>(*seed);
  asked.seeded = true;
}

void take_stops(Fields& f, const char* name, std::vector<std::string>& into) {
  const Json* const stop = f.find(name);
  if (stop == nullptr) return;
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (!list.is_array() || list.size() > 16)
    return f.refuse(name, "must be a string or a list of at most 16");
  for (const Json& s : list) {
    if (!s.is_string() || s.get_ref<const std::string&>().empty() ||
        s.get_ref<const std::string&>().size() > 256)
      return f.refuse(name, "must be strings of 1 to 256 bytes");
    into.push_back(s.get<std::string>());
  }
}

std::optional<ApiError> finish_fields(Fields& f, const ParseContext& context) {
  if (context.strict_fields && !f.failed()) f.refuse_unknown();
  if (f.failed()) return f.error();
  return std::nullopt;
}

}  // namespace quire
