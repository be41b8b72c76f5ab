// Granite 3: Llama with numbers that multiply embeddings, scores, residuals and logits.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"granite"};
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  TRY_STATUS(refuse_if_true(from, {"", "mlp_bias"}));
  layer.attn.interleaved = from.is_gguf() ? layer.attn.key_dim : 0;
  c.paired_in_gguf = true;
  TRY(c.embedding_scale, from.f32_above_or({"embedding_scale", "embedding_multiplier"}, 0, 1));
  TRY(layer.attn.scale, from.f32_above_or({"attention.scale", "attention_multiplier"}, 0,
                                          from.is_gguf() ? layer.attn.scale : 1));
  TRY(layer.residual, from.f32_above_or({"residual_scale", "residual_multiplier"}, 0, 1));
  TRY(const float divisor, from.f32_above_or({"logit_scale", "logits_scaling"}, 0, 1));
  c.logit_scale = 1 / divisor;
  return fill_alike(from, layer, c);
}

}  // namespace

const Architecture kGranite{"granite", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
