// model/arch/parts.h - what several architectures share: functions for an architecture's `fill`,
// and entries for its table of tensors.
//
//   constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors);
//   Status fill(const Hyperparameters& from, ModelConfig& c) {
//     TRY(LayerSpec layer, dense_layer(from, c));
//     TRY(layer.attn.window, window_of(from));
//     c.per_layer.assign(c.layers, layer);
//     ...
#pragma once

#include <algorithm>
#include <array>

#include "model/arch/arch.h"

namespace quire {

// The common decoder's layer: RMS norms before both halves, heads and widths as the file has them,
// scores times 1 / sqrt(key_dim), silu(gate) * up. Experts are refused. Sets the output norm, too.
Result<LayerSpec> dense_layer(const Hyperparameters& from, ModelConfig& config);

// The model's rotary embedding: base, dimensions, and linear or Llama 3 scaling; another kind of
// scaling is an error. `parameters` is the path of its object in config.json ("rope_parameters", as
// newer files have it; older ones are understood too).
Result<RopeConfig> rope_of(const Hyperparameters& from, const Attention& attn,
                           std::string_view parameters = "rope_parameters");

inline constexpr Key kSlidingWindow{"attention.sliding_window", "sliding_window"};
Result<std::uint32_t> window_of(const Hyperparameters& from);  // 0: none

// Windows of every layer from config.json's `layer_types`, if it has that key: `window` where it
// says sliding_attention.
Result<bool> fill_layer_types(const Hyperparameters& from, std::uint32_t window,
                              ModelConfig& config);

// What Qwen 2 and 3 share: every layer has this spec, with the model's rotation and its windows.
Status fill_qwen(const Hyperparameters& from, const LayerSpec& layer, ModelConfig& config);

// config.json names its activation; any other activation is an error.
Status need_activation(const Hyperparameters& from, Key key, std::string_view name);
// Refuses biases and other variants that no executor computes.
Status refuse_if_true(const Hyperparameters& from, Key key);

namespace extent {
using Config = ModelConfig;
using Layer = LayerSpec;
inline std::uint64_t hidden(const Config& c, const Layer&) { return c.hidden; }
inline std::uint64_t vocabulary(const Config& c, const Layer&) { return c.vocabulary; }
inline std::uint64_t inner(const Config&, const Layer& l) { return l.ffn.width; }
inline std::uint64_t queries(const Config&, const Layer& l) { return l.attn.queries(); }
inline std::uint64_t keys(const Config&, const Layer& l) { return l.attn.keys(); }
inline std::uint64_t values(const Config&, const Layer& l) { return l.attn.values(); }
inline std::uint64_t attended(const Config&, const Layer& l) { return l.attn.attended(); }
inline std::uint64_t head(const Config&, const Layer& l) { return l.attn.key_dim; }
}  // namespace extent

template <std::size_t... N>
constexpr auto join(const std::array<TensorEntry, N>&... parts) {
  std::array<TensorEntry, (N + ...)> all{};
  auto at = all.begin();
  ((at = std::copy(parts.begin(), parts.end(), at)), ...);
  return all;
}

inline constexpr auto kAttentionTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_norm.weight", "layers.N.input_layernorm.weight", extent::hidden},
    {"blk.N.attn_q.weight", "layers.N.self_attn.q_proj.weight", extent::hidden, extent::queries},
    {"blk.N.attn_k.weight", "layers.N.self_attn.k_proj.weight", extent::hidden, extent::keys},
    {"blk.N.attn_v.weight", "layers.N.self_attn.v_proj.weight", extent::hidden, extent::values},
    {"blk.N.attn_output.weight", "layers.N.self_attn.o_proj.weight", extent::attended,
     extent::hidden},
});
inline constexpr auto kGatedTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_gate.weight", "layers.N.mlp.gate_proj.weight", extent::hidden, extent::inner},
    {"blk.N.ffn_up.weight", "layers.N.mlp.up_proj.weight", extent::hidden, extent::inner},
    {"blk.N.ffn_down.weight", "layers.N.mlp.down_proj.weight", extent::inner, extent::hidden},
});
// Norms of layers that have none after attention and feed-forward.
inline constexpr auto kPreNormTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_norm.weight", "layers.N.post_attention_layernorm.weight", extent::hidden},
});
inline constexpr auto kHeadNormTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_q_norm.weight", "layers.N.self_attn.q_norm.weight", extent::head},
    {"blk.N.attn_k_norm.weight", "layers.N.self_attn.k_norm.weight", extent::head},
});
inline constexpr auto kQkvBiasTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_q.bias", "layers.N.self_attn.q_proj.bias", extent::queries},
    {"blk.N.attn_k.bias", "layers.N.self_attn.k_proj.bias", extent::keys},
    {"blk.N.attn_v.bias", "layers.N.self_attn.v_proj.bias", extent::values},
});

}  // namespace quire
