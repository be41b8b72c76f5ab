// text/vocab_json_reader.h - reads tokenizer.json without building its two huge parts as JSON
// values.
//
// A vocabulary has up to 262,144 entries and half a million merges; they go straight into vectors,
// everything else (a few kilobytes of settings) into an ordinary JSON value. For vocab_json.cc
// alone.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire {

struct TokenizerJson {
  std::vector<std::pair<std::string, std::int64_t>> vocab;  // model.vocab
  std::vector<std::string> merges;                          // model.merges, as "left right"
  nlohmann::json
      rest;  // without those two; keys sorted: a file with many keys costs no quadratic time
};

// `name` is the file that errors speak of.
Result<TokenizerJson> read_tokenizer_json(std::string_view text,
                                          const char* name = "tokenizer.json");

}  // namespace quire
