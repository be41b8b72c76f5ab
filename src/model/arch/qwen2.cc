// Qwen 2 and 2.5: biases on q, k and v; windows only where the file turns them on.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen2"};
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors, kQkvBiasTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  layer.attn.qkv_bias = true;
  return fill_qwen(from, layer, c);
}

}  // namespace

// Shared with Qwen 3. In config.json a window counts only with use_sliding_window, and only from
// max_window_layers on.
Status fill_qwen(const Hyperparameters& from, const LayerSpec& layer, ModelConfig& c) {
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(fill_alike(from, layer, c));
  constexpr Key kUse{"", "use_sliding_window"}, kFirst{"", "max_window_layers"};
  TRY(const bool windows, from.bool_or(kUse, from.is_gguf()));
  if (!windows) return {};
  TRY(const std::uint32_t window, window_of(from));
  TRY(const bool listed, fill_layer_types(from, window, c));
  if (listed) return {};
  TRY(const std::uint64_t first, from.unsigned_or(kFirst, 0));
  for (std::uint64_t i = first; i < c.layers; ++i) c.per_layer[i].attn.window = window;
  return {};
}

const Architecture kQwen2{"qwen2", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
