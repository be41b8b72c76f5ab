// model/config.h - the hyperparameters of a model, whatever file they came from.
//
// One table serves all architectures: `llama` with RoPE scaling or a window, `gemma3`, `qwen2`,
// `qwen3`. What an architecture adds is a flag or a number here, filled by its file in model/arch/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

class GgufFile;

enum class Activation : std::uint8_t {
  silu,
  gelu
};  // of the gated feed-forward: silu(g)*u or gelu_tanh(g)*u

struct RopeConfig {
  float base = 10000.0f;
  std::uint32_t dimensions = 0;  // rotated dimensions of a head
  std::vector<float>
      factors;  // divides each frequency (Llama 3 scaling, as tensor or computed); empty: none
  float linear_factor = 1.0f;  // divides positions
};

struct LayerConfig {
  std::uint32_t window = 0;  // how many keys a query sees, its own included; 0: all before it
  std::uint32_t rope = 0;    // index into ModelConfig::ropes
};

struct ModelConfig {
  std::string architecture;  // "llama", "gemma3", "qwen2", "qwen3"
  std::string name;          // as the file calls itself
  std::uint32_t layers = 0, hidden = 0, feed_forward = 0;
  std::uint32_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::uint32_t vocabulary = 0, context = 0;
  float norm_epsilon = 1e-5f;
  float attention_scale = 0;  // multiplies q.k; 1/sqrt(head_dim) unless the model says otherwise
  float embedding_scale = 1;  // gemma: sqrt(hidden)
  float logit_softcap = 0;    // 0: none
  Activation activation = Activation::silu;
  bool qk_norm = false;  // RMSNorm of each head of q and k before RoPE
  bool qkv_bias = false;
  bool sandwich_norms = false;  // gemma: norms after attention and feed-forward too
  bool norm_plus_one =
      false;  // norm weights are stored as w - 1 (Hugging Face gemma); added at load
  bool interleaved_rope =
      false;  // rows of wq/wk are stored for pairs (2i, 2i+1); un-permuted at load
  bool tied_head = false;
  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> per_layer;
};

// Every size is checked: what these return makes sense, or the error names the key that does not.
Result<ModelConfig> config_from_gguf(const GgufFile& file);
Result<ModelConfig> config_from_hf(std::string_view config_json, const std::string& file_name);

}  // namespace quire
