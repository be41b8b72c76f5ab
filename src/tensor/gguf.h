// tensor/gguf.h - a GGUF model file (version 2 or 3, little-endian): typed metadata and views of
// its tensors.
//
// The file is mapped, checked once when opened, and never copied: strings, arrays and tensors are
// views that live as long as the GgufFile (moving it keeps them valid), or until detach(). Whatever the bytes claim,
// nothing outside the file is read and nothing is allocated by a claimed size. Errors name the file
// and the key or tensor.
//
//   TRY(GgufFile file, GgufFile::open("model.gguf"));
//   TRY(std::uint64_t layers, file.unsigned_of("llama.block_count"));
//   TRY(GgufStrings tokens, file.strings_of("tokenizer.ggml.tokens"));
//   for (std::string_view token : tokens) ...
//   const TensorView* norm = file.find("output_norm.weight");   // null: no such tensor
//
// A model may be split into several files (tensor/gguf_parts.h): the first has all keys, and tensors
// are in any. Opening one of them opens all.
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/tensor.h"

namespace quire {

// As the format numbers them.
enum class GgufType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};

// The strings of an array, walked in order.
class GgufStrings {
 public:
  class Iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;
    using pointer = const std::string_view*;
    using reference = std::string_view;

    Iterator() = default;
    explicit Iterator(const std::byte* at) : at_(at) {}
    std::string_view operator*() const {
      return {reinterpret_cast<const char*>(at_ + sizeof(std::uint64_t)), length()};
    }
    Iterator& operator++() {
      at_ += sizeof(std::uint64_t) + length();
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    std::uint64_t length() const {
      std::uint64_t n;
      std::memcpy(&n, at_, sizeof n);
      return n;
    }
    const std::byte* at_ = nullptr;
  };

  GgufStrings() = default;
  GgufStrings(std::span<const std::byte> bytes, std::uint64_t count)
      : bytes_(bytes), count_(count) {}
  Iterator begin() const { return Iterator(bytes_.data()); }
  Iterator end() const { return Iterator(bytes_.data() + bytes_.size()); }
  std::uint64_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t count_ = 0;
};

// The numbers of an array, whatever width they are stored in.
template <class T>
class GgufNumbers {
 public:
  GgufNumbers() = default;
  GgufNumbers(const std::byte* at, std::uint64_t count, GgufType stored)
      : at_(at), count_(count), stored_(stored) {}
  T operator[](std::uint64_t i) const;

  class Iterator {
   public:
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;
    using pointer = const T*;
    using reference = T;

    Iterator() = default;
    Iterator(const GgufNumbers* numbers, std::uint64_t at) : numbers_(numbers), at_(at) {}
    T operator*() const { return (*numbers_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return {numbers_, at_++}; }
    bool operator==(const Iterator&) const = default;

   private:
    const GgufNumbers* numbers_ = nullptr;
    std::uint64_t at_ = 0;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, count_}; }
  std::uint64_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

 private:
  const std::byte* at_ = nullptr;
  std::uint64_t count_ = 0;
  GgufType stored_ = GgufType::u8;
};

class GgufFile {
 public:
  static Result<GgufFile> open(const std::string& path);
  // Parses bytes that the caller keeps alive; errors show `name` instead of a path.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, const std::string& name);
  // The parts of a split model, in order, as one. An error if they do not belong together.
  static Result<GgufFile> join(std::vector<GgufFile> parts);

  bool has(std::string_view key) const { return entry(key) != nullptr; }

  // The value of a key as a non-negative integer of any stored width, a float, and so on. If the
  // type differs, the error names both types.
  Result<std::uint64_t> unsigned_of(std::string_view key) const;
  Result<float> f32_of(std::string_view key) const;
  Result<bool> bool_of(std::string_view key) const;
  Result<std::string_view> string_of(std::string_view key) const;
  Result<GgufStrings> strings_of(std::string_view key) const;
  Result<GgufNumbers<std::int64_t>> integers_of(std::string_view key) const;  // booleans too
  Result<GgufNumbers<float>> floats_of(std::string_view key) const;

  // As above, but `otherwise` for a key that is not there (a wrong type is still an error).
  Result<std::uint64_t> unsigned_or(std::string_view key, std::uint64_t otherwise) const;
  Result<float> f32_or(std::string_view key, float otherwise) const;
  Result<bool> bool_or(std::string_view key, bool otherwise) const;
  Result<std::string_view> string_or(std::string_view key, std::string_view otherwise) const;
  bool is_array(std::string_view key) const;

  const TensorView* find(std::string_view tensor) const;  // null: not there
  std::span<const TensorView> tensors() const { return tensors_; }

  const std::string& name() const { return name_; }
  std::uint64_t parts() const { return parts_; }
  void drop_pages(const TensorView& tensor) const;  // nothing, if no file holds its data

  // From now on there are only the tensors' names, types and shapes, whatever happens to the file
  // (base/file.h). Views of strings and arrays are void.
  void detach();
  std::span<const MappedFile> files() const { return files_; }

 private:
  friend class GgufParser;
  struct Entry {
    std::string_view key;
    GgufType type = GgufType::u8;
    GgufType element = GgufType::u8;   // of an array
    std::uint64_t count = 0;           // of an array
    std::span<const std::byte> value;  // without the length of a string or the head of an array
  };

  const Entry* entry(std::string_view key) const;
  Result<const Entry*> wanted(std::string_view key) const;
  Error wrong_type(const Entry& entry, std::string_view need) const;

  static Result<GgufFile> open_one(const std::string& path);

  std::vector<MappedFile> files_;
  std::uint64_t parts_ = 1;
  std::string name_;
  std::vector<Entry> entries_;       // by key
  std::vector<TensorView> tensors_;  // by name
};

}  // namespace quire
