#include "text/grammar_schema.h"

#include <fmt/core.h>

#include <array>
#include <string>
#include <string_view>

#include "text/regex_counts.h"

namespace quire {
namespace {

constexpr std::size_t kNodesMax = 4096;      // schemas within the schema
constexpr std::size_t kValuesMax = 4096;     // of all enums together
constexpr std::int64_t kCountMax = 100'000;  // maxItems, maxLength and their like
constexpr int kDepthMax = 48;

// Where schemas stand within a schema.
constexpr std::array<std::string_view, 5> kNamed = {"properties", "patternProperties", "$defs",
                                                    "definitions", "dependentSchemas"};
constexpr std::array<std::string_view, 4> kListed = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array<std::string_view, 10> kSingle = {"items",
                                                      "additionalProperties",
                                                      "unevaluatedProperties",
                                                      "unevaluatedItems",
                                                      "propertyNames",
                                                      "not",
                                                      "if",
                                                      "then",
                                                      "else",
                                                      "contains"};

constexpr std::array<std::string_view, 12> kUnenforceable = {"not",
                                                             "if",
                                                             "then",
                                                             "else",
                                                             "dependentRequired",
                                                             "dependentSchemas",
                                                             "dependencies",
                                                             "contains",
                                                             "minContains",
                                                             "maxContains",
                                                             "$dynamicRef",
                                                             "$recursiveRef"};
constexpr std::array<std::string_view, 6> kCounts = {"minItems",  "maxItems",      "minLength",
                                                     "maxLength", "minProperties", "maxProperties"};

Error wrong(std::string_view where, std::string_view what) {
  return {Code::invalid, fmt::format("{}: {}", where.empty() ? "the schema" : where, what)};
}

bool is_type(const Json& schema, std::string_view type) {
  const auto t = schema.find("type");
  if (t == schema.end()) return false;
  if (t->is_string()) return t->get_ref<const std::string&>() == type;
  if (!t->is_array()) return false;
  for (const Json& one : *t)
    if (one.is_string() && one.get_ref<const std::string&>() == type) return true;
  return false;
}

bool has_any(const Json& schema, std::initializer_list<std::string_view> names) {
  for (const std::string_view n : names)
    if (schema.contains(n)) return true;
  return false;
}

class Preparer {
 public:
  explicit Preparer(bool strict) : strict_(strict) {}

  Status visit(Json& schema, const std::string& where, int depth) {
    if (schema.is_boolean()) return {};
    if (!schema.is_object()) return wrong(where, "must be an object, true or false");
    if (depth > kDepthMax)
      return wrong(where, fmt::format("is nested deeper than {} levels", kDepthMax));
    if (++nodes_ > kNodesMax)
      return wrong("", fmt::format("holds more than {} schemas", kNodesMax));
    if (Status s = check(schema, where); !s.ok()) return s;
    open(schema);
    if (const auto pattern = schema.find("pattern");
        pattern != schema.end() && pattern->is_string())
      *pattern = unfold_counts(pattern->get_ref<const std::string&>());
    for (const std::string_view name : kNamed) {
      const auto map = schema.find(name);
      if (map == schema.end()) continue;
      if (!map->is_object()) return wrong(where, fmt::format("'{}' must be an object", name));
      for (auto& [key, one] : map->items())
        if (Status s = visit(one, path(path(where, name), key), depth + 1); !s.ok()) return s;
    }
    for (const std::string_view name : kListed) {
      const auto list = schema.find(name);
      if (list == schema.end()) continue;
      if (!list->is_array()) return wrong(where, fmt::format("'{}' must be a list", name));
      std::size_t i = 0;
      for (Json& one : *list)
        if (Status s = visit(one, path(path(where, name), std::to_string(i++)), depth + 1); !s.ok())
          return s;
    }
    for (const std::string_view name : kSingle)
      if (const auto one = schema.find(name); one != schema.end())
        if (Status s = visit(*one, path(where, name), depth + 1); !s.ok()) return s;
    return {};
  }

 private:
  static std::string path(const std::string& where, std::string_view name) {
    return fmt::format("{}{}{}", where, where.empty() ? "" : ".", name.substr(0, 64));
  }

  Status check(const Json& schema, const std::string& where) {
    if (const auto e = schema.find("enum"); e != schema.end()) {
      if (!e->is_array() || e->empty()) return wrong(where, "'enum' must be a list with values");
      if ((values_ += e->size()) > kValuesMax)
        return wrong(where, fmt::format("has more than {} enum values", kValuesMax));
    }
    for (const std::string_view name : kCounts) {
      const auto count = schema.find(name);
      if (count == schema.end()) continue;
      if (!count->is_number_integer())
        return wrong(where, fmt::format("'{}' must be a whole number", name));
      if (*count > kCountMax)
        return wrong(where, fmt::format("'{}' must be at most {}", name, kCountMax));
    }
    if (!strict_) return {};
    for (const std::string_view name : kUnenforceable)
      if (schema.contains(name)) return unenforceable(where, name);
    if (const auto unique = schema.find("uniqueItems"); unique != schema.end() && *unique == true)
      return unenforceable(where, "uniqueItems");
    if (has_any(schema, {"anyOf", "oneOf", "$ref"}) && has_any(schema, {"properties", "items"}))
      return unenforceable(where, "properties or items beside anyOf, oneOf or $ref");
    return {};
  }

  static Error unenforceable(std::string_view where, std::string_view what) {
    return wrong(where, fmt::format("'{}' cannot be enforced; leave it out, or strict", what));
  }

  // An object or array without constraints may hold anything.
  static void open(Json& schema) {
    if (has_any(schema, {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"})) return;
    if (is_type(schema, "object") &&
        !has_any(schema, {"properties", "patternProperties", "additionalProperties",
                          "unevaluatedProperties", "propertyNames"}))
      schema["additionalProperties"] = true;
    if (is_type(schema, "array") && !has_any(schema, {"items", "prefixItems", "unevaluatedItems"}))
      schema["items"] = Json::object();
  }

  bool strict_;
  std::size_t nodes_ = 0, values_ = 0;
};

}  // namespace

Result<Json> prepare_schema(const Json& schema, bool strict) {
  Json copy = schema;
  Preparer preparer(strict);
  if (Status s = preparer.visit(copy, "", 0); !s.ok()) return s.error();
  return copy;
}

}  // namespace quire
