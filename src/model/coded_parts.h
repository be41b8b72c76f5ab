// model/coded_parts.h - the tensors that a coded matrix consists of, with their types and shapes
// checked. Used by the readers of model/coded_tensor.cc and its neighbours.
//
//   TRY(const Part codes, need(look, base + ".qweight", {"I32"}, {inputs, outputs / 8}));
//   codes.word(7); scales.number(3);
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/e4m3.h"
#include "base/half.h"
#include "base/result.h"
#include "model/coded_tensor.h"

namespace quire {

enum class NumberType : std::uint8_t { other, f32, f16, bf16, e8m0 };

struct Part {
  std::string name;
  NumberType type = NumberType::other;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner;

  std::uint8_t byte(std::uint64_t i) const { return static_cast<std::uint8_t>(data[i]); }
  std::uint16_t half(std::uint64_t i) const { return load<std::uint16_t>(i); }
  std::uint32_t word(std::uint64_t i) const { return load<std::uint32_t>(i); }
  float number(std::uint64_t i) const {
    switch (type) {
      case NumberType::f16:
        return f16_to_f32(half(i));
      case NumberType::bf16:
        return bf16_to_f32(half(i));
      case NumberType::e8m0:  // 2^(e - 127)
        return byte(i) == 0 ? 0x1p-127f
                            : std::bit_cast<float>(byte(i) == 0xff ? 0x7fc00000u
                                                                   : std::uint32_t{byte(i)} << 23);
      default:
        return load<float>(i);
    }
  }
  std::uint64_t count() const {
    std::uint64_t n = 1;
    for (const std::uint64_t extent : shape) n *= extent;
    return n;
  }

 private:
  template <class T>
  T load(std::uint64_t i) const {
    T v;
    std::memcpy(&v, data.data() + i * sizeof v, sizeof v);
    return v;
  }
};

using FoundCoded = Result<std::optional<CodedTensor>>;
using Shape = std::vector<std::uint64_t>;
using TypeNames = std::initializer_list<std::string_view>;

// Any tensor of one of these types; nothing: there is none of this name.
Result<std::optional<Part>> find_part(const TensorLookup& look, const std::string& name,
                                      TypeNames types);
// One that must be there, and have some numbers.
Result<Part> need(const TensorLookup& look, const std::string& name, TypeNames types);
// ... and have this shape.
Result<Part> need(const TensorLookup& look, const std::string& name, TypeNames types,
                  const Shape& shape);

Error bad_part(const Part& part, std::string_view message);

// What follows encodes one kind each. `base` is the name of the layer: "model.layers.0.mlp.up_proj".
FoundCoded find_fp8(const TensorLookup& look, const Quantization& how, const std::string& name);
FoundCoded find_awq(const TensorLookup& look, const std::string& base);
FoundCoded find_gptq(const TensorLookup& look, const Quantization& how, const std::string& base);
FoundCoded find_packed(const TensorLookup& look, const std::string& base);
FoundCoded find_mxfp4(const TensorLookup& look, const std::string& codes,
                      const std::string& scales);
FoundCoded find_nf4(const TensorLookup& look, const std::string& name);

}  // namespace quire
