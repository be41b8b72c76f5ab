// model/quantization.h - how a Hugging Face folder stores quantized matrices, from the
// `quantization_config` of its config.json. Used by model/weights_source.cc.
//
// Tensors that are plain (F32, F16, BF16) are read as they are, whatever it says.
//
//   TRY(const Quantization how, quantization_from_hf(config_json, "m/config.json"));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire {

struct Quantization {
  enum class Method : std::uint8_t {
    none,
    fp8,           // F8_E4M3, with scales for the tensor, for rows, or for blocks
    awq,           // 4 bits, [inputs, outputs / 8], in AWQ's order
    gptq,          // 4 bits, [inputs / 8, outputs]
    packed,        // compressed-tensors: 4 bits, [outputs, inputs / 8]
    mxfp4,         // gpt-oss: NAME_blocks and NAME_scales
    mxfp4_packed,  // compressed-tensors: weight_packed and weight_scale
    nf4,           // bitsandbytes
  };
  Method method = Method::none;
  std::string name;                                 // as config.json spells it; for people
  std::uint32_t block_rows = 0, block_columns = 0;  // fp8; 0: no blocks
  bool zeros_less_one = false;                      // gptq: a zero is stored less one
};

Result<Quantization> quantization_from_hf(std::string_view config_json,
                                          const std::string& file_name);

}  // namespace quire
