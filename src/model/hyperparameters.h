// model/hyperparameters.h - one way to ask a model file for a number, whether it is GGUF metadata
// or a Hugging Face config.json.
//
// A Key has the name of both forms: GGUF's without the architecture's prefix ("block_count" is
// "llama.block_count"), config.json's with dots into nested objects. Errors name the file and the
// key as that file spells it. A JSON null is an absent key. Used by model/config.cc and the
// architectures.
//
//   constexpr Key kLayers{"block_count", "num_hidden_layers"};
//   TRY(std::uint64_t layers, from.unsigned_of(kLayers));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_named.h"
#include "base/result.h"
#include "tensor/gguf.h"

namespace quire {

struct Key {
  std::string_view gguf, hf;  // empty: this form has no such key
};

class Hyperparameters {
 public:
  // Both keep a reference to what they are given.
  Hyperparameters(const GgufFile& file, std::string_view architecture)
      : gguf_(&file), prefix_(std::string(architecture) + '.') {}
  Hyperparameters(const Json& object, std::string name) : json_(&object), name_(std::move(name)) {}

  bool is_gguf() const { return gguf_ != nullptr; }
  const GgufFile& gguf() const { return *gguf_; }
  const Json* json_at(std::string_view path) const;  // null when absent or null

  bool has(Key key) const;
  Result<std::uint64_t> unsigned_of(Key key) const;
  Result<float> f32_of(Key key) const;
  Result<bool> bool_of(Key key) const;
  Result<std::string> string_of(Key key) const;

  // A count of something: from 1 to `max`, or the error says so.
  Result<std::uint32_t> size_of(Key key, std::uint64_t max) const;
  Result<std::uint32_t> size_or(Key key, std::uint64_t max, std::uint32_t otherwise) const {
    return has(key) ? size_of(key, max) : otherwise;
  }
  // A number above `floor`, or the error says so.
  Result<float> f32_above(Key key, float floor) const;
  Result<std::uint64_t> unsigned_or(Key key, std::uint64_t otherwise) const {
    return has(key) ? unsigned_of(key) : otherwise;
  }
  Result<float> f32_or(Key key, float otherwise) const {
    return has(key) ? f32_of(key) : otherwise;
  }
  Result<float> f32_above_or(Key key, float floor, float otherwise) const {
    return has(key) ? f32_above(key, floor) : otherwise;
  }
  Result<bool> bool_or(Key key, bool otherwise) const {
    return has(key) ? bool_of(key) : otherwise;
  }
  Result<std::string> string_or(Key key, std::string otherwise) const {
    return has(key) ? string_of(key) : std::move(otherwise);
  }

  std::string spelled(Key key) const;  // "llama.block_count"
  // "FILE: key 'llama.block_count' MESSAGE"
  Error bad(Key key, Code code, std::string_view message) const;

 private:
  Result<const Json*> wanted_json(Key key) const;

  const GgufFile* gguf_ = nullptr;
  std::string prefix_;
  const Json* json_ = nullptr;
  std::string name_;
};

}  // namespace quire
