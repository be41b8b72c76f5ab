// Gemma 3 (text): local layers with a window and a RoPE base of their own, every sixth layer
// global; norms before and after both halves; norms of q and k; a gelu gate; scaled embeddings; the
// head is the embedding.
#include <fmt/format.h>

#include <cmath>

#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"gemma3_text", "gemma3"};

// What the configurations of the larger models leave out (transformers' own defaults for this
// architecture).
constexpr std::string_view kHfDefaults = R"({
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "query_pre_attn_scalar": 256, "tie_word_embeddings": true})";

constexpr auto kTensors = join(kAttentionTensors, kGemmaBeforeTensors, kGatedTensors,
                               kHeadNormTensors, kGemmaAfterTensors);

constexpr std::uint32_t kGlobal = 0, kLocal = 1;  // indices into ropes
constexpr std::uint64_t kGlobalEvery = 6;         // every sixth layer is global
constexpr Key kPattern{"attention.sliding_window_pattern", "sliding_window_pattern"};

Status fill_ropes(const Hyperparameters& from, const Attention& attn, ModelConfig& c) {
  const bool by_kind = !from.is_gguf() && from.json_at("rope_parameters.full_attention");
  TRY(RopeConfig global,
      rope_of(from, c, attn,
              {.parameters = by_kind ? "rope_parameters.full_attention" : "rope_parameters"}));
  if (from.is_gguf() && !from.has({"rope.freq_base", ""})) global.base = 1e6f;
  RopeConfig local;
  local.dimensions = global.dimensions;
  if (by_kind && from.json_at("rope_parameters.sliding_attention")) {
    TRY(local, rope_of(from, c, attn, {.parameters = "rope_parameters.sliding_attention"}));
  } else {
    constexpr Key kBase{"rope.local.freq_base", "rope_local_base_freq"},
        kOther{"rope.freq_base_swa", ""};
    TRY(local.base, from.f32_above_or(from.has(kOther) ? kOther : kBase, 1, 10000.0f));
  }
  c.ropes = {std::move(global), std::move(local)};
  return {};
}

// Newer GGUF files may list which layers are local instead of counting them.
Result<bool> fill_listed_windows(const Hyperparameters& from, std::uint32_t window,
                                 ModelConfig& c) {
  if (!from.is_gguf()) return fill_layer_types(from, window, c);
  if (!from.gguf().is_array(from.spelled(kPattern))) return false;
  TRY(const GgufNumbers<std::int64_t> local, from.gguf().integers_of(from.spelled(kPattern)));
  if (local.size() != c.layers)
    return from.bad(kPattern, Code::corrupt,
                    fmt::format("has {} entries for {} layers", local.size(), c.layers));
  for (std::uint32_t i = 0; i < c.layers; ++i) c.per_layer[i].attn.window = local[i] ? window : 0;
  return true;
}

Status fill_windows(const Hyperparameters& from, ModelConfig& c) {
  TRY(const std::uint32_t window, window_of(from));
  if (window == 0)
    return from.bad(kSlidingWindow, Code::not_found, "is missing or 0; local layers need it");
  TRY(const bool listed, fill_listed_windows(from, window, c));
  if (!listed) {
    TRY(const std::uint64_t every, from.unsigned_or(kPattern, kGlobalEvery));
    if (every == 0) return from.bad(kPattern, Code::corrupt, "is 0");
    for (std::uint32_t i = 0; i < c.layers; ++i)
      c.per_layer[i].attn.window = i % every == every - 1 ? 0 : window;
  }
  for (LayerSpec& layer : c.per_layer) layer.attn.rope = layer.attn.window ? kLocal : kGlobal;
  return {};
}

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, gemma_layer(from, 62, c));
  constexpr Key kAttentionCap{"attn_logit_softcapping", "attn_logit_softcapping"};
  TRY(const float attention_cap, from.f32_or(kAttentionCap, 0));
  if (attention_cap != 0)
    return from.bad(kAttentionCap, Code::unsupported, "is set, which is not supported");
  layer.attn.head_norm = c.output_norm;
  c.per_layer.assign(c.layers, layer);
  TRY_STATUS(fill_ropes(from, layer.attn, c));
  return fill_windows(from, c);
}

}  // namespace

// Shared with Gemma 2.
Result<LayerSpec> gemma_layer(const Hyperparameters& from, std::uint32_t layers_of_27b,
                              ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(need_activation(from, {"", "hidden_activation"}, "gelu_pytorch_tanh"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  TRY_STATUS(refuse_if_true(from, {"", "use_bidirectional_attention"}));
  TRY(c.logit_softcap, from.f32_or({"final_logit_softcapping", "final_logit_softcapping"}, 0));
  c.embedding_scale = std::sqrt(static_cast<float>(c.hidden));
  c.output_norm.plus_one = !from.is_gguf();
  layer.pre_a = layer.post_a = layer.pre_f = layer.post_f = c.output_norm;
  layer.ffn.activation = Activation::gelu;
  // GGUF does not carry query_pre_attn_scalar: it is the head size, but hidden / heads in the 27B
  // model, which is known by its layers.
  const bool is_27b = from.is_gguf() && c.layers == layers_of_27b;
  TRY(const float scalar, from.f32_above_or({"", "query_pre_attn_scalar"}, 0,
                                            is_27b ? static_cast<float>(c.hidden) /
                                                         static_cast<float>(layer.attn.query_heads)
                                                   : static_cast<float>(layer.attn.key_dim)));
  layer.attn.scale = 1 / std::sqrt(scalar);
  return layer;
}

const Architecture kGemma3{"gemma3", kModelTypes, kHfDefaults, fill, kTensors};

}  // namespace quire
