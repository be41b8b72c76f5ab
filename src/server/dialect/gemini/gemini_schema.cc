#include "server/dialect/gemini/gemini_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

namespace quire::gemini {
namespace {

constexpr std::array kCounts = {"minItems",  "maxItems",      "minLength",
                                "maxLength", "minProperties", "maxProperties"};
constexpr std::array kLists = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array kSchemas = {"items", "additionalProperties", "not"};
// Formats of Gemini's that say nothing about a text.
constexpr std::array kOtherFormats = {"enum", "int32", "int64", "float", "double"};

template <class List>
bool one_of(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

// "min_items" as "minItems".
std::string camel_case(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i)
    if (name[i] == '_' && i > 0 && i + 1 < name.size() && name[i + 1] >= 'a' && name[i + 1] <= 'z')
      out += static_cast<char>(name[++i] - 'a' + 'A');
    else
      out += name[i];
  return out;
}

Json in_small_letters(const Json& type) {
  if (!type.is_string()) return type;
  std::string name = type.get<std::string>();
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return name;
}

Json number_of(const Json& value) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? Json(number) : value;
}

// Both in the order of `names`; what they do not name comes last.
Json ordered(const Json& properties, const Json& names) {
  if (!names.is_array()) return properties;
  Json out = Json::object();
  for (const Json& name : names)
    if (name.is_string())
      if (const auto at = properties.find(name.get_ref<const std::string&>());
          at != properties.end())
        out[at.key()] = *at;
  for (const auto& [name, property] : properties.items())
    if (!out.contains(name)) out[name] = property;
  return out;
}

Json each_of(const Json& schemas) {
  Json out = schemas;
  if (out.is_array() || out.is_object())
    for (Json& schema : out) schema = json_schema_of(schema);
  return out;
}

}  // namespace

// Nested no deeper than the parser of requests allows.
Json json_schema_of(const Json& schema) {
  if (!schema.is_object()) return schema;
  Json out = Json::object(), order = nullptr;
  bool nullable = false;
  for (const auto& [key, value] : schema.items()) {
    const std::string name = camel_case(key);
    if (name == "type") {
      if (value.is_array()) {
        out[name] = Json::array();
        for (const Json& type : value) out[name].push_back(in_small_letters(type));
      } else if (value != "TYPE_UNSPECIFIED") {
        out[name] = in_small_letters(value);
      }
    } else if (name == "properties" || name == "$defs" || name == "defs") {
      out[name == "defs" ? "$defs" : name] = each_of(value);
    } else if (name == "ref") {
      out["$ref"] = value;
    } else if (one_of(kLists, name)) {
      out[name] = each_of(value);
    } else if (one_of(kSchemas, name)) {
      out[name] = json_schema_of(value);
    } else if (one_of(kCounts, name)) {
      out[name] = number_of(value);
    } else if (name == "nullable") {
      nullable = value == true;
    } else if (name == "propertyOrdering") {
      order = value;
    } else if (name == "format") {
      if (!value.is_string() || !one_of(kOtherFormats, value.get_ref<const std::string&>()))
        out[name] = value;
    } else if (name != "example") {
      out[name] = value;
    }
  }
  if (out.contains("properties") && out["properties"].is_object())
    out["properties"] = ordered(out["properties"], order);
  if (!nullable) return out;
  return {{"anyOf", Json::array({std::move(out), {{"type", "null"}}})}};
}

}  // namespace quire::gemini
