// Gemma 2: every other layer has a window; scores and logits under soft caps; norms before and after
// both halves; a gelu gate; scaled embeddings; the head is the embedding.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"gemma2"};

// What older configurations leave out (transformers' own defaults).
constexpr std::string_view kHfDefaults = R"({
  "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "rms_norm_eps": 1e-6,
  "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "tie_word_embeddings": true})";

constexpr auto kTensors =
    join(kAttentionTensors, kGemmaBeforeTensors, kGatedTensors, kGemmaAfterTensors);

constexpr std::uint32_t kWindow = 4096;

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, gemma_layer(from, 46, c));
  TRY(layer.attn.softcap, from.f32_or({"attn_logit_softcapping", "attn_logit_softcapping"}, 0));
  TRY_STATUS(fill_alike(from, layer, c));
  TRY(std::uint32_t window, window_of(from));
  if (!from.has(kSlidingWindow)) window = kWindow;
  TRY(const bool listed, fill_layer_types(from, window, c));
  for (std::uint32_t i = 0; !listed && i < c.layers; i += 2) c.per_layer[i].attn.window = window;
  return {};
}

}  // namespace

const Architecture kGemma2{"gemma2", kModelTypes, kHfDefaults, fill, kTensors};

}  // namespace quire
