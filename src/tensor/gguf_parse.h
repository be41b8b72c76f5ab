// tensor/gguf_parse.h - reads the head of a GGUF file and checks every claim in it. Used by
// tensor/gguf.cc alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensor/gguf.h"

namespace quire {

std::string_view gguf_type_name(GgufType type);
std::size_t gguf_type_bytes(GgufType type);  // 0 for strings and arrays

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile& file) : bytes_(bytes), file_(file) {}
  Status parse();

 private:
  struct Place {  // of one tensor in the data section
    std::uint64_t offset, size;
    std::size_t tensor;
  };

  Status parse_entry();
  Status parse_value(GgufFile::Entry& entry);
  Status parse_array(GgufFile::Entry& entry);
  Result<Place> parse_tensor();
  Status sort_entries();
  Status place_tensors(std::vector<Place>& places);
  Result<std::uint64_t> alignment() const;

  // The next n bytes, or an error that says what was being read.
  Result<std::span<const std::byte>> take(std::uint64_t n, std::string_view what);
  template <class T>
  Result<T> number(std::string_view what);
  Result<std::string_view> text(std::uint64_t length_max, std::string_view what);
  Error bad(Code code, std::string_view message) const;

  std::span<const std::byte> bytes_;
  GgufFile& file_;
  std::uint64_t at_ = 0;
  std::uint32_t version_ = 0;
};

}  // namespace quire
