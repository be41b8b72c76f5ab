// text/pre_tokenizer.h - cuts text into words, as in the model's training; byte-level BPE merges
// inside a word only.
//
// A pre-tokenizer is an entry of a table: a name as in tokenizer.ggml.pre and one to six patterns.
// Each pattern cuts the words that the one before left (matches and the text between them both
// become words). Only these patterns are ever compiled: a model file can name them but not bring
// its own. Each of them runs in linear time.
//
//   TRY(PreTokenizer pre, PreTokenizer::create("smollm"));
//   pre.split("It's 42", [&](std::string_view word) { ... });   // "It" "'s" " " "4" "2"
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

// What models with this pre-tokenizer do, unless their file says otherwise.
struct PreTokenizerDefaults {
  bool ignore_merges = false, nfc = false, add_bos = false;
};

struct PreTokenizerEntry {
  std::string_view name;
  std::vector<std::string_view> patterns;  // as Hugging Face spells them
  PreTokenizerDefaults defaults;
};

std::span<const PreTokenizerEntry> pre_tokenizers();
Result<const PreTokenizerEntry*> find_pre_tokenizer(std::string_view name);
// The entry with exactly these patterns, or null. For tokenizer.json, which lists patterns instead
// of a name.
const PreTokenizerEntry* find_pre_tokenizer(std::span<const std::string_view> patterns);

extern const std::string_view kGpt2Pattern,
    kDigitPattern;  // what ByteLevel and Digits mean in a tokenizer.json

class PreTokenizer {
 public:
  static Result<PreTokenizer> create(std::string_view name);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Calls `word` with each word, in order; no list of them is made. Bytes that are not UTF-8 count as
  // control characters. Safe from many threads.
  void split(std::string_view text, const std::function<void(std::string_view)>& word) const;

 private:
  struct Patterns;
  explicit PreTokenizer(std::unique_ptr<Patterns> patterns);
  std::unique_ptr<Patterns> patterns_;
};

}  // namespace quire
