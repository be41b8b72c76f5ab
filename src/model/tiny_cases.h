// model/tiny_cases.h - the tiny models whose logits transformers has computed (tests/tiny).
#pragma once

#include <string>
#include <vector>

#include "model/tiny.h"

namespace quire {

struct TinyCase {
  std::string name;
  TinyOptions options;
};

inline std::vector<TinyCase> tiny_cases() {
  const TinyOptions plain[] = {
      {.layers = 3},
      {.layers = 3, .head_dim = 32, .tied_head = false, .rope_factors = true},
      {.layers = 3, .kv_heads = 1, .rope_linear = 2},
      {.layers = 3, .kv_heads = 4, .window = 32},
      {.architecture = "gemma3", .layers = 7, .head_dim = 32, .window = 32, .rope_linear = 8},
      {.architecture = "qwen2", .layers = 3, .tied_head = false},
      {.architecture = "qwen3", .layers = 3, .head_dim = 32},
  };
  const char* names[] = {"llama",  "llama-factors", "llama-linear", "mistral",
                         "gemma3", "qwen2",         "qwen3"};
  std::vector<TinyCase> cases;
  for (std::size_t i = 0; i < std::size(plain); ++i)
    for (const DType type : {DType::f32, DType::q8_0, DType::q4_1}) {
      if (type != DType::f32 && std::string_view(names[i]) != plain[i].architecture) continue;
      TinyCase c{std::string(names[i]) + "-" + std::string(dtype_info(type).name), plain[i]};
      c.options.type = type;
      c.options.seed = i + 1;
      cases.push_back(std::move(c));
    }
  return cases;
}

}  // namespace quire
