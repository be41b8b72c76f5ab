// gpt-oss: experts with clamped gates and biases everywhere; every other layer has a window; a learned
// sink for each query head; YaRN with bounds that are not rounded.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"gpt_oss"};
constexpr std::string_view kHfDefaults =
    R"({"head_dim": 64, "sliding_window": 128, "swiglu_limit": 7.0, "rms_norm_eps": 1e-5})";

constexpr std::string_view kGateUp = "layers.N.mlp.experts.gate_up_proj",
                           kGateUpBias = "layers.N.mlp.experts.gate_up_proj_bias";

constexpr auto kOwnTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_output.bias", "layers.N.self_attn.o_proj.bias", extent::out_bias},
    {"blk.N.attn_sinks.weight", "layers.N.self_attn.sinks", extent::sinks},
    {"blk.N.ffn_norm.weight", "layers.N.post_attention_layernorm.weight", extent::hidden, nullptr,
     "blk.N.post_attention_norm.weight"},
    {"blk.N.ffn_gate_inp.weight", "layers.N.mlp.router.weight", extent::hidden, extent::experts},
    {"blk.N.ffn_gate_inp.bias", "layers.N.mlp.router.bias", extent::router_bias},
    {"blk.N.ffn_gate.E.weight", kGateUp, extent::hidden, extent::expert_inner},
    {"blk.N.ffn_up.E.weight", kGateUp, extent::hidden, extent::expert_inner},
    {"blk.N.ffn_down.E.weight", "layers.N.mlp.experts.down_proj", extent::expert_inner,
     extent::expert_hidden},
    {"blk.N.ffn_gate.E.bias", kGateUpBias, extent::expert_inner_bias},
    {"blk.N.ffn_up.E.bias", kGateUpBias, extent::expert_inner_bias},
    {"blk.N.ffn_down.E.bias", "layers.N.mlp.experts.down_proj_bias", extent::expert_down_bias},
});
constexpr auto kTensors = join(kAttentionTensors, kQkvBiasTensors, kOwnTensors);

// Hugging Face stores gate and up in turn.
std::uint64_t in_turn(const LayerSpec& layer, std::uint64_t row) {
  const std::uint64_t width = layer.ffn.experts.width;
  return row < width ? 2 * row : 2 * (row - width) + 1;
}

// As MXFP4, experts are rows of codes and not transposed.
constexpr std::string_view kGateUpBlocks = "layers.N.mlp.experts.gate_up_proj_blocks",
                           kDownBlocks = "layers.N.mlp.experts.down_proj_blocks";

constexpr auto kPieces = std::to_array<TensorPiece>({
    {"blk.N.ffn_gate.E.weight", "", kGateUpBlocks, extent::none, extent::all_gate_up, false,
     in_turn, extent::expert_gate_up},
    {"blk.N.ffn_up.E.weight", "", kGateUpBlocks, extent::expert_inner, extent::all_gate_up, false,
     in_turn, extent::expert_gate_up},
    {"blk.N.ffn_down.E.weight", "", kDownBlocks, extent::none, extent::all_hidden, false, nullptr,
     extent::hidden},
    {"blk.N.ffn_gate.E.weight", "", kGateUp, extent::none, extent::expert_gate_up, true, in_turn,
     extent::expert_gate_up},
    {"blk.N.ffn_up.E.weight", "", kGateUp, extent::expert_inner, extent::expert_gate_up, true,
     in_turn, extent::expert_gate_up},
    {"blk.N.ffn_down.E.weight", "", "layers.N.mlp.experts.down_proj", extent::none, extent::hidden,
     true, nullptr, extent::hidden},
    {"blk.N.ffn_gate.E.bias", "", kGateUpBias, extent::none, extent::all_gate_up, false, in_turn,
     extent::expert_gate_up},
    {"blk.N.ffn_up.E.bias", "", kGateUpBias, extent::expert_inner, extent::all_gate_up, false,
     in_turn, extent::expert_gate_up},
});

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c, true));
  layer.attn.qkv_bias = layer.attn.out_bias = layer.attn.sinks = true;
  TRY(layer.ffn, experts_of(from, {"num_local_experts", "intermediate_size"}));
  layer.ffn.activation = Activation::clamped;
  TRY(layer.ffn.limit, from.f32_above_or({"", "swiglu_limit"}, 0, 7));
  Experts& e = layer.ffn.experts;
  e.scores = Experts::Scores::chosen;
  e.router_bias = e.bias = true;
  TRY(RopeConfig rope, rope_of(from, c, layer.attn, {.truncate = false}));
  use_rope(rope, 0, layer.attn);
  c.ropes.push_back(std::move(rope));
  c.per_layer.assign(c.layers, layer);
  TRY(const std::uint32_t window, window_of(from));
  TRY(const bool listed, fill_layer_types(from, window, c));
  for (std::uint32_t i = 0; !listed && i < c.layers; i += 2) c.per_layer[i].attn.window = window;
  return {};
}

}  // namespace

const Architecture kGptOss{"gpt-oss", kModelTypes, kHfDefaults, fill, kTensors, kPieces};

}  // namespace quire
