// Falcon 7B, 40B and 180B: attention and feed-forward side by side, from one layer norm or from two;
// one KV head, or a few; no gate. Hugging Face stores q, k and v group by group.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"falcon", "RefinedWebModel", "RefinedWeb"};
constexpr std::string_view kHfDefaults = R"({
  "layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048, "tie_word_embeddings": true,
  "multi_query": true, "new_decoder_architecture": false, "parallel_attn": true,
  "activation": "gelu"})";

constexpr std::string_view kQkv = "h.N.self_attention.query_key_value.weight";

constexpr auto kTensors = std::to_array<TensorEntry>({
    {"token_embd.weight", "word_embeddings.weight", extent::hidden, extent::vocabulary},
    {"output_norm.weight", "ln_f.weight", extent::hidden},
    {"output_norm.bias", "ln_f.bias", extent::output_bias},
    {"blk.N.attn_norm.weight", "h.N.input_layernorm.weight", extent::hidden},
    {"blk.N.attn_norm.bias", "h.N.input_layernorm.bias", extent::attention_norm_bias},
    {"blk.N.ffn_norm.weight", "h.N.input_layernorm.weight", extent::hidden, nullptr,
     "blk.N.attn_norm.weight"},
    {"blk.N.ffn_norm.bias", "h.N.input_layernorm.bias", extent::inner_norm_bias, nullptr,
     "blk.N.attn_norm.bias"},
    {"blk.N.attn_q.weight", kQkv, extent::hidden, extent::queries},
    {"blk.N.attn_k.weight", kQkv, extent::hidden, extent::keys},
    {"blk.N.attn_v.weight", kQkv, extent::hidden, extent::values},
    {"blk.N.attn_output.weight", "h.N.self_attention.dense.weight", extent::attended,
     extent::hidden},
    {"blk.N.ffn_up.weight", "h.N.mlp.dense_h_to_4h.weight", extent::hidden, extent::inner},
    {"blk.N.ffn_down.weight", "h.N.mlp.dense_4h_to_h.weight", extent::inner, extent::hidden},
});

// A group is the query heads of a KV head, its key and its value.
std::uint64_t stored_row(const LayerSpec& layer, std::uint64_t row) {
  const Attention& a = layer.attn;
  const std::uint64_t head = row / a.key_dim, kv_head = (head - a.query_heads) % a.kv_heads;
  const bool is_query = head < a.query_heads, is_key = head < a.query_heads + a.kv_heads;
  const std::uint64_t group = is_query ? head / a.group() : kv_head;
  const std::uint64_t at = is_query ? head % a.group() : a.group() + (is_key ? 0 : 1);
  return (group * (a.group() + 2) + at) * a.key_dim + row % a.key_dim;
}

// The larger models have a norm for each half.
constexpr auto kPieces = std::to_array<TensorPiece>({
    {"blk.N.attn_norm.weight", "blk.N.attn_norm_2.weight", "h.N.ln_attn.weight", extent::none,
     extent::hidden},
    {"blk.N.attn_norm.bias", "blk.N.attn_norm_2.bias", "h.N.ln_attn.bias", extent::none,
     extent::hidden},
    {"blk.N.ffn_norm.weight", "", "h.N.ln_mlp.weight", extent::none, extent::hidden},
    {"blk.N.ffn_norm.bias", "", "h.N.ln_mlp.bias", extent::none, extent::hidden},
    {"blk.N.attn_q.weight", "", kQkv, extent::none, extent::qkv, false, stored_row},
    {"blk.N.attn_k.weight", "", kQkv, extent::queries, extent::qkv, false, stored_row},
    {"blk.N.attn_v.weight", "", kQkv, extent::before_values, extent::qkv, false, stored_row},
});

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, plain_layer(from, "layer_norm_epsilon", c));
  TRY_STATUS(need_activation(from, {"", "activation"}, "gelu"));
  TRY_STATUS(refuse_if_true(from, {"", "alibi"}));
  TRY_STATUS(refuse_if_true(from, {"", "bias"}));
  constexpr Key kParallel{"", "parallel_attn"};
  TRY(const bool newer, from.bool_or({"", "new_decoder_architecture"}, from.is_gguf()));
  TRY(const bool parallel, from.bool_or(kParallel, true));
  if (!newer && !parallel)
    return from.bad(kParallel, Code::unsupported, "is false, which is not supported");
  TRY(const bool multi_query, from.bool_or({"", "multi_query"}, false));
  if (!newer && multi_query) layer.attn.kv_heads = 1;
  layer.parallel = true;
  layer.ffn.activation = Activation::gelu_erf;
  return fill_alike(from, layer, c);
}

}  // namespace

const Architecture kFalcon{"falcon", kModelTypes, kHfDefaults, fill, kTensors, kPieces};

}  // namespace quire
