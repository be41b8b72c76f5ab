#include "server/dialect/responses/turn.h"

namespace quire::responses {
namespace {

const Json& field_of(const Json& object, const char* name) {
  static const Json kNothing;
  return object.is_object() && object.contains(name) ? object[name] : kNothing;
}

}  // namespace

Json read_stored(const StoredResponse& stored) {
  // More than of a body: it is nested deeper, and a chain has more items.
  JsonLimits limits = kRequestJson;
  limits.depth_max += 16;
  limits.keys_max *= 4;
  auto json = parse_json(stored.json, limits);
  if (!json.ok() || !field_of(json.value(), "items").is_array()) return nullptr;
  const Json& response = field_of(json.value(), "response");
  if (!response.is_object() || !field_of(response, "output").is_array()) return nullptr;
  return std::move(json.value());
}

}  // namespace quire::responses
