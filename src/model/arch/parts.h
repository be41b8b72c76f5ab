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
Result<LayerSpec> dense_layer(const Hyperparameters& from, ModelConfig& config,
                              bool may_have_experts = false);

// The layer of older decoders: layer norms, biases where the file has them, no gate. `epsilon` is
// config.json's key for it.
Result<LayerSpec> plain_layer(const Hyperparameters& from, std::string_view epsilon,
                              ModelConfig& config);

// The model's rotary embedding: base, dimensions, and linear, Llama 3, YaRN or LongRoPE scaling;
// another kind of scaling is an error.
struct RopeChoices {
  // Path of its object in config.json, as newer files have it; older ones are understood too.
  std::string_view parameters = "rope_parameters";
  bool truncate = true;  // YaRN's bounds are whole numbers, unless config.json says otherwise
};
Result<RopeConfig> rope_of(const Hyperparameters& from, const ModelConfig& config,
                           const Attention& attn, RopeChoices choices = {});
// A layer is rotated so, by ropes[index]. It goes into the layer's scales, too: once for a layer.
void use_rope(const RopeConfig& rope, std::uint32_t index, Attention& attn);
// The experts of a layer: how many, how many of them a row uses, and how wide they are; keys as in
// config.json. The layer has no feed-forward of its own then.
struct ExpertKeys {
  std::string_view count, width;
};
Result<FeedForward> experts_of(const Hyperparameters& from, ExpertKeys keys);
// What DeepSeek's kind of experts has in common: the scale of their weights, their groups, and the
// width of the expert that all rows have.
inline constexpr Key kRenormalize{"expert_weights_norm", "norm_topk_prob"};
Status fill_groups(const Hyperparameters& from, Experts& e);
// The last blocks of a GGUF file may guess further tokens. They are left out.
Status leave_out_guessing(const Hyperparameters& from, ModelConfig& config);
// Layers whose feed-forward is one, as in config.json (a list, and a step) or before the first with
// experts.
Status fill_dense(const Hyperparameters& from, const FeedForward& dense, ModelConfig& config);

// Every layer has this spec, with the model's one rotation.
Status fill_alike(const Hyperparameters& from, LayerSpec layer, ModelConfig& config);

inline constexpr Key kSlidingWindow{"attention.sliding_window", "sliding_window"};
Result<std::uint32_t> window_of(const Hyperparameters& from);  // 0: none

// Windows of every layer from config.json's `layer_types`, if it has that key: `window` where it
// says sliding_attention.
Result<bool> fill_layer_types(const Hyperparameters& from, std::uint32_t window,
                              ModelConfig& config);

// What Qwen 2 and 3 share: every layer has this spec, with the model's rotation and its windows.
Status fill_qwen(const Hyperparameters& from, const LayerSpec& layer, ModelConfig& config);

// What Gemma 2 and 3 share: norms on all sides, a gelu gate, scaled embeddings. The scale of scores in
// a GGUF file depends on whether it is the 27B model, which has so many layers.
Result<LayerSpec> gemma_layer(const Hyperparameters& from, std::uint32_t layers_of_27b,
                              ModelConfig& config);

// config.json names its activation; any other activation is an error.
Status need_activation(const Hyperparameters& from, Key key, std::string_view name);
// Whether a bias is there: in GGUF its tensor, in config.json a key that says so.
Result<bool> has_bias(const Hyperparameters& from, std::string_view tensor, std::string_view key);
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
inline std::uint64_t none(const Config&, const Layer&) { return 0; }
inline std::uint64_t qkv(const Config&, const Layer& l) { return l.attn.qkv(); }
inline std::uint64_t before_values(const Config&, const Layer& l) {
  return l.attn.queries() + l.attn.keys();
}
inline std::uint64_t gate_up(const Config&, const Layer& l) {
  return l.ffn.gated ? 2 * std::uint64_t{l.ffn.width} : 0;
}
inline std::uint64_t experts(const Config&, const Layer& l) { return l.ffn.experts.count; }
inline std::uint64_t expert_inner(const Config&, const Layer& l) {
  return l.ffn.experts ? l.ffn.experts.width : 0;
}
inline std::uint64_t expert_gate_up(const Config& c, const Layer& l) {
  return 2 * expert_inner(c, l);
}
inline std::uint64_t all_inner(const Config& c, const Layer& l) {
  return experts(c, l) * expert_inner(c, l);
}
inline std::uint64_t all_gate_up(const Config& c, const Layer& l) { return 2 * all_inner(c, l); }
inline std::uint64_t all_hidden(const Config& c, const Layer& l) {
  return experts(c, l) * c.hidden;
}
inline std::uint64_t expert_hidden(const Config& c, const Layer& l) {
  return l.ffn.experts ? c.hidden : 0;
}
inline std::uint64_t expert_inner_bias(const Config&, const Layer& l) {
  return l.ffn.experts.bias ? l.ffn.experts.width : 0;
}
inline std::uint64_t expert_down_bias(const Config& c, const Layer& l) {
  return l.ffn.experts.bias ? c.hidden : 0;
}
inline std::uint64_t router_bias(const Config&, const Layer& l) {
  return l.ffn.experts.router_bias ? l.ffn.experts.count : 0;
}
inline std::uint64_t choice_bias(const Config&, const Layer& l) {
  return l.ffn.experts.choice_bias ? l.ffn.experts.count : 0;
}
inline std::uint64_t shared_inner(const Config&, const Layer& l) {
  return l.ffn.experts.shared_width;
}
inline std::uint64_t shared_gate(const Config&, const Layer& l) {
  return l.ffn.experts.shared_gate ? 1 : 0;
}
inline std::uint64_t head_norm(const Config&, const Layer& l) {
  return l.attn.head_norm ? l.attn.key_dim : 0;
}
inline std::uint64_t sinks(const Config&, const Layer& l) {
  return l.attn.sinks ? l.attn.query_heads : 0;
}
inline std::uint64_t positions(const Config& c, const Layer&) {
  return c.learned_positions ? c.context : 0;
}
inline std::uint64_t norm_bias(const Norm& norm, const Config& c) {
  return norm.kind == Norm::Kind::layer ? c.hidden : 0;
}
inline std::uint64_t output_bias(const Config& c, const Layer&) {
  return norm_bias(c.output_norm, c);
}
inline std::uint64_t attention_norm_bias(const Config& c, const Layer& l) {
  return norm_bias(l.pre_a, c);
}
inline std::uint64_t inner_norm_bias(const Config& c, const Layer& l) {
  return norm_bias(l.pre_f, c);
}
inline std::uint64_t query_bias(const Config&, const Layer& l) {
  return l.attn.qkv_bias ? l.attn.queries() : 0;
}
inline std::uint64_t key_bias(const Config&, const Layer& l) {
  return l.attn.qkv_bias ? l.attn.keys() : 0;
}
inline std::uint64_t value_bias(const Config&, const Layer& l) {
  return l.attn.qkv_bias ? l.attn.values() : 0;
}
inline std::uint64_t out_bias(const Config& c, const Layer& l) {
  return l.attn.out_bias ? c.hidden : 0;
}
inline std::uint64_t up_bias(const Config&, const Layer& l) { return l.ffn.bias ? l.ffn.width : 0; }
inline std::uint64_t down_bias(const Config& c, const Layer& l) {
  return l.ffn.bias ? c.hidden : 0;
}
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
// The same without the norm.
inline constexpr auto kProjectionTensors = [] {
  std::array<TensorEntry, kAttentionTensors.size() - 1> rows;
  std::copy(kAttentionTensors.begin() + 1, kAttentionTensors.end(), rows.begin());
  return rows;
}();
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
inline constexpr auto kGemmaBeforeTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_norm.weight", "layers.N.pre_feedforward_layernorm.weight", extent::hidden},
});
inline constexpr auto kGemmaAfterTensors = std::to_array<TensorEntry>({
    {"blk.N.post_attention_norm.weight", "layers.N.post_attention_layernorm.weight",
     extent::hidden},
    {"blk.N.post_ffw_norm.weight", "layers.N.post_feedforward_layernorm.weight", extent::hidden},
});
inline constexpr auto kQkvBiasTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_q.bias", "layers.N.self_attn.q_proj.bias", extent::query_bias},
    {"blk.N.attn_k.bias", "layers.N.self_attn.k_proj.bias", extent::key_bias},
    {"blk.N.attn_v.bias", "layers.N.self_attn.v_proj.bias", extent::value_bias},
});

// What DeepSeek's kind of experts has beside kExpertTensors: a bias that counts only where experts are
// chosen, and an expert that all rows have.
inline constexpr auto kSharedExpertTensors = std::to_array<TensorEntry>({
    {"blk.N.exp_probs_b.bias", "layers.N.mlp.gate.e_score_correction_bias", extent::choice_bias},
    {"blk.N.ffn_gate_shexp.weight", "layers.N.mlp.shared_experts.gate_proj.weight", extent::hidden,
     extent::shared_inner},
    {"blk.N.ffn_up_shexp.weight", "layers.N.mlp.shared_experts.up_proj.weight", extent::hidden,
     extent::shared_inner},
    {"blk.N.ffn_down_shexp.weight", "layers.N.mlp.shared_experts.down_proj.weight",
     extent::shared_inner, extent::expert_hidden},
});

// What layers with experts have instead of kGatedTensors; layers of a model may differ.
inline constexpr auto kExpertTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_gate_inp.weight", "layers.N.mlp.gate.weight", extent::hidden, extent::experts},
    {"blk.N.ffn_gate.E.weight", "layers.N.mlp.experts.E.gate_proj.weight", extent::hidden,
     extent::expert_inner},
    {"blk.N.ffn_up.E.weight", "layers.N.mlp.experts.E.up_proj.weight", extent::hidden,
     extent::expert_inner},
    {"blk.N.ffn_down.E.weight", "layers.N.mlp.experts.E.down_proj.weight", extent::expert_inner,
     extent::expert_hidden},
});

}  // namespace quire
