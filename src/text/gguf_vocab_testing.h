// text/gguf_vocab_testing.h - a VocabSpec out of a GGUF file, for tests of the text module alone.
//
// The text module stands below the one that reads model files, so its tests walk the metadata
// themselves. The file is trusted: it is the model under test, checked by its SHA-256 when it was
// fetched.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "text/vocab.h"

namespace quire {

// QUIRE_TEST_MODEL and the like, or the cache folder; "" when the file is not there.
inline std::string test_model_path(const char* variable, const char* name) {
  std::filesystem::path path;
  if (const char* given = std::getenv(variable)) {
    path = given;
  } else if (const char* cache = std::getenv("XDG_CACHE_HOME")) {
    path = std::filesystem::path(cache) / "quire/models" / name;
  } else if (const char* home = std::getenv("HOME")) {
    path = std::filesystem::path(home) / ".cache/quire/models" / name;
  }
  return std::filesystem::exists(path) ? path.string() : std::string();
}

class GgufVocabReader {
 public:
  explicit GgufVocabReader(std::string_view bytes) : bytes_(bytes) {}

  VocabSpec read() {
    VocabSpec spec;
    bytes_.remove_prefix(16);  // magic, version, tensor count
    for (auto count = take<std::uint64_t>(); count > 0; --count) {
      const std::string_view key = string();
      const auto type = take<std::uint32_t>();
      const std::string prefix = "tokenizer.ggml.";
      value(key.starts_with(prefix) ? key.substr(prefix.size()) : std::string_view(), type, spec);
    }
    return spec;
  }

 private:
  enum : std::uint32_t { kBool = 7, kString = 8, kArray = 9 };

  template <class T>
  T take() {
    T v;
    CHECK(bytes_.size() >= sizeof(T));
    std::memcpy(&v, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return v;
  }
  std::string_view string() {
    const auto size = take<std::uint64_t>();
    CHECK(size <= bytes_.size());
    const std::string_view s = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return s;
  }

  void value(std::string_view key, std::uint32_t type, VocabSpec& spec) {
    constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == kString) {
      const std::string_view s = string();
      if (key == "model") spec.model = vocab_model(s).value();
      if (key == "pre") spec.pre = s;
    } else if (type == kArray) {
      const auto of = take<std::uint32_t>();
      for (auto count = take<std::uint64_t>(); count > 0; --count) {
        if (key == "tokens")
          spec.tokens.emplace_back(string());
        else if (key == "merges")
          spec.merges.emplace_back(string());
        else if (key == "scores")
          spec.scores.push_back(take<float>());
        else if (key == "token_type")
          spec.types.push_back(static_cast<TokenType>(take<std::int32_t>()));
        else
          value({}, of, spec);
      }
    } else if (type == kBool) {
      const bool on = take<std::uint8_t>() != 0;
      if (key == "add_bos_token") spec.add_bos = on;
      if (key == "add_eos_token") spec.add_eos = on;
      if (key == "add_space_prefix")
        spec.space_prefix = on ? SpacePrefix::always : SpacePrefix::never;
    } else if (kSizes[type] == 4) {
      const auto id = static_cast<TokenId>(take<std::uint32_t>());
      if (key == "bos_token_id") spec.bos = id;
      if (key == "eos_token_id") spec.eos = id;
      if (key == "unknown_token_id") spec.unk = id;
      if (key == "padding_token_id") spec.pad = id;
    } else {
      bytes_.remove_prefix(kSizes[type]);
    }
  }

  std::string_view bytes_;
};

inline Result<VocabSpec> read_gguf_vocab(const std::string& path) {
  TRY(MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  return GgufVocabReader({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).read();
}

}  // namespace quire
