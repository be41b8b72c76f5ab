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
  const std::pair<const char*, TinyOptions> plain[] = {
      {"llama", {.layers = 3}},
      {"llama-factors", {.layers = 3, .head_dim = 32, .tied_head = false, .rope_factors = true}},
      {"llama-linear", {.layers = 3, .kv_heads = 1, .rope_linear = 2}},
      {"mistral", {.layers = 3, .kv_heads = 4, .window = 32}},
      {"gemma3",
       {.architecture = "gemma3", .layers = 7, .head_dim = 32, .window = 32, .rope_linear = 8}},
      {"qwen2", {.architecture = "qwen2", .layers = 3, .tied_head = false}},
      {"qwen3", {.architecture = "qwen3", .layers = 3, .head_dim = 32}},
      {"qwen3-yarn", {.architecture = "qwen3", .layers = 3, .head_dim = 32, .rope_yarn = 4}},
      {"smollm3", {.architecture = "smollm3", .layers = 5}},
      {"granite", {.architecture = "granite", .layers = 3}},
      {"phi3", {.architecture = "phi3", .layers = 3, .window = 48, .tied_head = false}},
      {"phi3-long",
       {.architecture = "phi3",
        .layers = 3,
        .kv_heads = 4,
        .rope_long = 64,
        .rope_dimensions = 12}},
      {"olmo2", {.architecture = "olmo2", .layers = 3}},
      {"glm4", {.architecture = "glm4", .layers = 3, .head_dim = 32, .tied_head = false}},
      {"gemma2", {.architecture = "gemma2", .layers = 4, .window = 32}},
      {"gpt2", {.architecture = "gpt2", .layers = 3, .context = 512}},
      {"starcoder2", {.architecture = "starcoder2", .layers = 3, .window = 32}},
      {"falcon", {.architecture = "falcon", .layers = 3, .kv_heads = 1}},
      {"mixtral", {.layers = 3, .experts = 4}},
      {"qwen2moe", {.architecture = "qwen2moe", .layers = 3, .tied_head = false}},
      {"qwen3moe", {.architecture = "qwen3moe", .layers = 3, .head_dim = 32, .experts = 8}},
      {"gpt-oss",
       {.architecture = "gpt-oss",
        .layers = 4,
        .window = 32,
        .rope_yarn = 4,
        .experts = 4,
        .seed = 51}},
      {"glm4moe", {.architecture = "glm4moe", .layers = 3, .head_dim = 32, .seed = 52}},
      {"deepseek2",
       {.architecture = "deepseek2", .layers = 3, .rope_yarn = 4, .experts = 8, .query_rank = 96}},
      {"deepseek2-lite", {.architecture = "deepseek2", .layers = 3, .experts = 8, .query_rank = 0}},
      {"deepseek2-old",
       {.architecture = "deepseek2",
        .layers = 3,
        .experts = 8,
        .query_rank = 96,
        .one_kv_b = true}},
      {"deepseek3",
       {.architecture = "deepseek2",
        .layers = 3,
        .rope_yarn = 4,
        .experts = 8,
        .query_rank = 96,
        .sigmoids = true}},
  };
  std::vector<TinyCase> cases;
  for (std::size_t i = 0; i < std::size(plain); ++i)
    for (const DType type : {DType::f32, DType::q8_0, DType::q4_1}) {
      const auto& [name, options] = plain[i];
      if (type != DType::f32 && name != options.architecture) continue;
      // Two of its experts are nearly tied: activations of 16 bits choose the other one.
      if (type == DType::q4_1 && options.architecture == "gpt-oss") continue;
      TinyCase c{std::string(name) + "-" + std::string(dtype_info(type).name), options};
      c.options.type = type;
      if (c.options.seed == 1) c.options.seed = i + 1;
      cases.push_back(std::move(c));
    }
  return cases;
}

}  // namespace quire
