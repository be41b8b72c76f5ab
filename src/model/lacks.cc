#include "model/lacks.h"

#include <fmt/format.h>

namespace quire {
namespace {

// The first thing that a layer needs and the executor does not compute; null: none.
const char* all_lack(const LayerSpec& l, const ModelConfig& c) {
  if (l.attn.value_dim != l.attn.key_dim && !l.attn.latent)
    return "values of another size than keys";
  if (l.attn.query_heads != c.query_heads) return "other query heads than the first layer";
  return nullptr;
}

constexpr std::uint32_t kLatentMax = 1024;

const char* cpu_lacks(const LayerSpec& l, const ModelConfig& c) {
  if (l.attn.key_dim % 16 != 0) return "heads of no multiple of 16";
  if (const Attention& a = l.attn; a.latent) {
    for (const std::uint32_t n :
         {a.latent.query_rank, a.latent.plain_dim, a.latent.out_dim, a.value_dim})
      if (n % 32 != 0) return "latent attention with parts of no multiple of 32";
    if (a.key_dim + a.value_dim > kLatentMax) return "latent rows of more than 1024 numbers";
  }
  if (l.ffn.experts.width % 32 != 0 || l.ffn.experts.shared_width % 32 != 0)
    return "experts of no multiple of 32";
  return all_lack(l, c);
}

const char* cuda_lacks(const LayerSpec& l, const ModelConfig& c) {
  const Attention& a = l.attn;
  if (const char* what = all_lack(l, c)) return what;
  if (a.latent) return "latent attention";
  if (l.ffn.experts) return "experts";
  if (a.key_dim > 256) return "heads of more than 256";
  if (a.group() > 8) return "more than 8 query heads for a KV head";
  if (c.learned_positions) return "learned positions";
  if (c.ropes[a.rope].dimensions == 0) return "attention without rotation";
  if (c.ropes[a.rope].dimensions != a.key_dim) return "rotation of a part of a head";
  if (a.softcap != 0) return "a soft cap of scores";
  if (a.norm_of_all) return "a norm of all heads together";
  if (a.sinks) return "attention sinks";
  if (a.out_bias || l.ffn.bias) return "biases beside those of q, k and v";
  if (l.pre_a.kind == Norm::Kind::layer || c.output_norm.kind == Norm::Kind::layer)
    return "layer norms";
  if (!l.ffn.gated) return "a feed-forward without a gate";
  if (l.parallel) return "attention and feed-forward side by side";
  if (l.residual != 1) return "scaled residuals";
  if (c.logit_scale != 1) return "scaled logits";
  if (!l.pre_a || !l.pre_f) return "no norm before attention or feed-forward";
  for (const Norm& norm : {l.pre_a, l.post_a, l.pre_f, l.post_f})
    if (norm && norm.epsilon != c.output_norm.epsilon) return "norms of different epsilons";
  if (c.logit_softcap != 0) return "a soft cap of logits";
  if (c.hidden % 64 != 0 || c.hidden > 8192) return "a width of no multiple of 64, or over 8192";
  if (l.ffn.width % 64 != 0) return "an inner width of no multiple of 64";
  if (c.vocabulary % 16 != 0) return "a vocabulary of no multiple of 16";
  return nullptr;
}

}  // namespace

Status check_layers(const ModelSource& source, DeviceKind device) {
  const ModelConfig& c = source.config();
  const bool cuda = device == DeviceKind::cuda;
  for (std::uint32_t i = 0; i < c.layers; ++i)
    if (const char* what = (cuda ? cuda_lacks : cpu_lacks)(c.per_layer[i], c))
      return Error{Code::unsupported,
                   fmt::format("{}: layer {} needs {}, which the {}", source.path(), i, what,
                               cuda ? "CUDA kernels do not compute; use --device cpu"
                                    : "CPU's kernels do not compute")};
  return {};
}

}  // namespace quire
