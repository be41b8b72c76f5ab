// tensor/gguf_writer.h - makes a GGUF file in memory. Used for tiny test models and by tests of the
// reader.
//
//   GgufWriter w;
//   w.add("general.architecture", "llama");
//   w.add_u32("llama.block_count", 2);
//   w.add_tensor("output_norm.weight", DType::f32, {64}, bytes);
//   write_file(path, w.finish());
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/gguf.h"

namespace quire {

class GgufWriter {
 public:
  void add(std::string_view key, std::string_view text);
  void add_u32(std::string_view key, std::uint32_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_strings(std::string_view key, std::span<const std::string> values);
  void add_i32s(std::string_view key, std::span<const std::int32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);

  // The shape is outermost first, as in TensorView.
  void add_tensor(std::string_view name, DType type, std::span<const std::uint64_t> shape,
                  std::span<const std::byte> data);

  std::string finish(std::uint32_t version = 3) const;

 private:
  void begin(std::string_view key, GgufType type);

  std::string entries_, infos_, data_;
  std::uint64_t entry_count_ = 0, tensor_count_ = 0;
};

}  // namespace quire
