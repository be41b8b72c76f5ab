// model/tiny_adapter.h - writes random LoRA adapters for tiny models (model/tiny.h), as PEFT folders
// and as GGUF files, for unit tests, tests of the server and the reference logits of tests/tiny.
//
// Same options, same bytes; the two forms have the same numbers, each in the order of its rows.
//
//   TRY_STATUS(write_tiny_adapter("adapter", options, config));        // a folder
//   write_file("adapter.gguf", tiny_gguf_adapter(options, config));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "model/config.h"
#include "tensor/dtype.h"

namespace quire {

struct TinyAdapterOptions {
  // Hugging Face's names of the modules, without their path: "q_proj".
  std::vector<std::string_view> modules = {"q_proj", "v_proj"};
  std::uint32_t rank = 4;
  float alpha = 16;
  bool rslora = false;
  // Of modules that end so, instead of `rank` and `alpha`.
  std::vector<std::pair<std::string_view, std::uint32_t>> ranks = {};
  std::vector<std::pair<std::string_view, float>> alphas = {};
  DType type = DType::f32;
  std::vector<TokenId> invocation = {};
  std::uint64_t seed = 1;
};

struct TinyAdapter {
  std::string config, tensors;  // adapter_config.json and adapter_model.safetensors
};
// Modules that a layer does not have are left out.
TinyAdapter tiny_adapter(const TinyAdapterOptions& options, const ModelConfig& config);
std::string tiny_gguf_adapter(const TinyAdapterOptions& options, const ModelConfig& config);
Status write_tiny_adapter(const std::string& folder, const TinyAdapterOptions& options,
                          const ModelConfig& config);

struct TinyAdapterCase {
  std::string name, model;  // of model/tiny_cases.h
  TinyAdapterOptions options;
};
// The adapters whose logits PEFT has computed (tests/tiny).
std::vector<TinyAdapterCase> tiny_adapter_cases();

}  // namespace quire
