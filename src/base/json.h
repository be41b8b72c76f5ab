// base/json.h - JSON values (nlohmann, keys in the order written) and a parser that returns a
// Result.
//
//   TRY(const Json config, parse_json(text));                // a file
//   TRY(const Json body, parse_json(text, kRequestJson));    // what a stranger sent
//
// The parser takes time and memory in proportion to the text, whatever it holds. Of a key that
// comes twice in an object the last value counts, at the place of the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_named.h"
#include "base/result.h"

namespace quire {

struct JsonLimits {
  int depth_max = 64;  // nested lists and objects
  std::size_t values_max = SIZE_MAX;
  std::size_t large_max = SIZE_MAX;        // strings, lists and objects: they take more memory
  std::size_t keys_max = SIZE_MAX;         // of all objects together
  std::size_t object_keys_max = SIZE_MAX;  // of one: looking one up walks them
};
// What a client may send. A list of tokens has a value for each.
inline constexpr JsonLimits kRequestJson{
    .values_max = 1 << 20, .large_max = 1 << 17, .keys_max = 1 << 16, .object_keys_max = 1 << 12};

std::size_t json_text_bytes(const Json& json);  // of all keys and strings in it

Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace quire
