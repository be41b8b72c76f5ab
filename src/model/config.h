// model/config.h - the hyperparameters of a model, from a GGUF file or a config.json: of the model
// as a whole, and what each layer computes (model/layer_spec.h). Filled by an entry of model/arch/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/layer_spec.h"

namespace quire {

class GgufFile;
struct TensorEntry;
struct TensorPiece;

struct RopeConfig {
  float base = 10000.0f;
  std::uint32_t dimensions = 0;  // rotated dimensions of a head, its first ones; 0: none
  // Divides each frequency (Llama 3 and YaRN scaling, as tensor or computed); empty: none.
  std::vector<float> factors;
  float linear_factor = 1.0f;  // divides positions
  // LongRoPE: `factors` are one of these two, the long ones if more than `trained` tokens are served.
  // Keys of the two cannot be compared, so a model has one of them for all texts.
  std::vector<float> short_factors, long_factors;
  std::uint32_t trained = 0;
  float attention_factor = 1.0f;  // of q and of k, where they are rotated; specs have it in scales
};

struct ModelConfig {
  std::string architecture;              // "llama", "gemma3" and so on; for people
  std::string name;                      // as the file calls itself
  std::span<const TensorEntry> tensors;  // that a layer has (model/arch/arch.h)
  std::span<const TensorPiece> pieces;
  std::uint32_t layers = 0, hidden = 0, vocabulary = 0, context = 0;
  float embedding_scale = 1;       // gemma: sqrt(hidden)
  float logit_scale = 1;           // multiplies logits
  float logit_softcap = 0;         // 0: none
  bool learned_positions = false;  // the embedding of a position is added to that of its token
  bool tied_head = false;
  // GGUF files have rows of q and k in pairs (2i, 2i + 1), Hugging Face's have not.
  bool paired_in_gguf = false;
  Norm output_norm;
  std::vector<RopeConfig> ropes;
  std::vector<LayerSpec> per_layer;
  // Of the first layer, for code that needs all layers to be alike.
  std::uint32_t query_heads = 0, kv_heads = 0, head_dim = 0, feed_forward = 0;

  // The largest value of a number in any layer. Sizes scratch memory.
  template <class F>
  std::uint32_t widest(F of) const {
    std::uint32_t most = 0;
    for (const LayerSpec& layer : per_layer) most = std::max(most, of(layer));
    return most;
  }
};

// Positions up to `context` are served: which decides between the factors of LongRoPE.
void serve_context(ModelConfig& config, std::uint32_t context);
// How rows of the cache know their position, as roots of the cache name it: "rope".
std::string position_scheme(const ModelConfig& config);

// Every size is checked. An error names the key that makes no sense.
Result<ModelConfig> config_from_gguf(const GgufFile& file);
Result<ModelConfig> config_from_hf(std::string_view config_json, const std::string& file_name);

}  // namespace quire
