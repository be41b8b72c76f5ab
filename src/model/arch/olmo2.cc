// OLMo 2: norms after both halves and none before; norms of q and of k over all of their heads.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"olmo2"};
constexpr auto kNormTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_q_norm.weight", "layers.N.self_attn.q_norm.weight", extent::queries},
    {"blk.N.attn_k_norm.weight", "layers.N.self_attn.k_norm.weight", extent::keys},
});
constexpr auto kTensors = join(kProjectionTensors, kNormTensors, kGatedTensors, kGemmaAfterTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  layer.post_a = layer.post_f = layer.attn.head_norm = c.output_norm;
  layer.pre_a = layer.pre_f = {};
  layer.attn.norm_of_all = true;
  return fill_alike(from, layer, c);
}

}  // namespace

const Architecture kOlmo2{"olmo2", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
