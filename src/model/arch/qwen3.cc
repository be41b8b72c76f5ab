// Qwen 3 (dense): norms of each head of q and k instead of Qwen 2's biases.
#include "model/arch/qwen.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen3"};

constexpr TensorRow kTensors[] = {
    {"blk.N.ffn_norm.weight", "layers.N.post_attention_layernorm.weight", Extent::none,
     Extent::hidden},
    {"blk.N.attn_q_norm.weight", "layers.N.self_attn.q_norm.weight", Extent::none, Extent::head},
    {"blk.N.attn_k_norm.weight", "layers.N.self_attn.k_norm.weight", Extent::none, Extent::head},
};

Status fill(const Hyperparameters& from, ModelConfig& c) {
  c.qk_norm = true;
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  return fill_qwen(from, c);
}

}  // namespace

const Architecture kQwen3{"qwen3", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
