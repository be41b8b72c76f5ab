// Phi 3, 3.5 and 4: Llama with q, k and v in one tensor, gate and up in another, and with LongRoPE in
// the long ones, where a part of a head may stay as it is.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"phi3"};
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  TRY(layer.attn.window, window_of(from));
  return fill_alike(from, layer, c);
}

}  // namespace

const Architecture kPhi3{"phi3", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
