// Llama 2 and 3, SmolLM2, TinyLlama, Mistral with its sliding window, and Mixtral with its experts.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"llama", "mistral", "mixtral"};
constexpr auto kMixtralTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_gate_inp.weight", "layers.N.block_sparse_moe.gate.weight", extent::hidden,
     extent::experts},
    {"blk.N.ffn_gate.E.weight", "layers.N.block_sparse_moe.experts.E.w1.weight", extent::hidden,
     extent::expert_inner},
    {"blk.N.ffn_up.E.weight", "layers.N.block_sparse_moe.experts.E.w3.weight", extent::hidden,
     extent::expert_inner},
    {"blk.N.ffn_down.E.weight", "layers.N.block_sparse_moe.experts.E.w2.weight",
     extent::expert_inner, extent::expert_hidden},
});
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors, kMixtralTensors);
constexpr auto kPieces = std::to_array<TensorPiece>({
    // as newer versions write it
    {"blk.N.ffn_gate_inp.weight", "", "layers.N.mlp.gate.weight", extent::none, extent::experts},
});

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c, true));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  TRY_STATUS(refuse_if_true(from, {"", "mlp_bias"}));
  TRY(const std::uint64_t experts, from.unsigned_or({"expert_count", "num_local_experts"}, 0));
  if (experts != 0) {
    TRY(layer.ffn, experts_of(from, {"num_local_experts", "intermediate_size"}));
    layer.ffn.experts.renormalize = true;
  }
  layer.attn.interleaved = from.is_gguf() ? layer.attn.key_dim : 0;
  c.paired_in_gguf = true;
  TRY(layer.attn.window, window_of(from));
  TRY_STATUS(fill_alike(from, layer, c));
  TRY_STATUS(fill_layer_types(from, layer.attn.window, c));
  return {};
}

}  // namespace

const Architecture kLlama{"llama", kModelTypes, "{}", fill, kTensors, kPieces};

}  // namespace quire
