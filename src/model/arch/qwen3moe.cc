// Qwen 3 with experts.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3_moe"};
constexpr auto kTensors =
    join(kAttentionTensors, kPreNormTensors, kGatedTensors, kHeadNormTensors, kExpertTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c, true));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  const FeedForward dense = layer.ffn;
  TRY(layer.ffn, experts_of(from, {"num_experts", "moe_intermediate_size"}));
  // GGUF does not say it.
  TRY(layer.ffn.experts.renormalize, from.bool_or({"", "norm_topk_prob"}, from.is_gguf()));
  layer.attn.head_norm = layer.pre_a;
  TRY_STATUS(fill_qwen(from, layer, c));
  return fill_dense(from, dense, c);
}

}  // namespace

const Architecture kQwen3Moe{"qwen3moe", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
