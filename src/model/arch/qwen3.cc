// Qwen 3 (dense): norms of each head of q and k instead of Qwen 2's biases.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3"};
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors, kHeadNormTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  layer.attn.head_norm = layer.pre_a;
  return fill_qwen(from, layer, c);
}

}  // namespace

const Architecture kQwen3{"qwen3", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
