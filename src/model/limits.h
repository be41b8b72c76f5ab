// model/limits.h - what the layers of a model may not ask of a device. Model::load looks first, so that
// a walker never meets a spec that it cannot compute.
//
//   TRY_STATUS(check_limits(kCudaLimits, source.config(), source.path(), "--device cuda"));
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>

#include "model/config.h"

namespace quire {

struct Asked {
  const ModelConfig& model;
  const LayerSpec& layer;
  const Attention& attn = layer.attn;
};

struct Limit {
  std::string_view what;  // is not computed
  bool (*is_asked)(const Asked& by);
};

inline constexpr Limit kCpuLimits[] = {
    {"values of another size than keys",
     [](const Asked& by) { return by.attn.value_dim != by.attn.key_dim; }},
};

inline constexpr Limit kCudaLimits[] = {
    kCpuLimits[0],
    {"heads of more than 256", [](const Asked& by) { return by.attn.key_dim > 256; }},
    {"over 8 query heads for a KV head", [](const Asked& by) { return by.attn.group() > 8; }},
    {"rotation of a part of a head",
     [](const Asked& by) { return by.model.ropes[by.attn.rope].dimensions != by.attn.key_dim; }},
    {"halves without a norm before",
     [](const Asked& by) { return !by.layer.pre_a || !by.layer.pre_f; }},
    {"norms of different epsilons",
     [](const Asked& by) {
       for (const Norm& n : {by.layer.pre_a, by.layer.post_a, by.layer.pre_f, by.layer.post_f})
         if (n && n.epsilon != by.model.output_norm.epsilon) return true;
       return false;
     }},
    {"rows over 8192 wide, or of no multiple of 64",
     [](const Asked& by) { return by.model.hidden % 64 != 0 || by.model.hidden > 8192; }},
    {"an inner width of no multiple of 64",
     [](const Asked& by) { return by.layer.ffn.width % 64 != 0; }},
    {"a vocabulary of no multiple of 16",
     [](const Asked& by) { return by.model.vocabulary % 16 != 0; }},
};

inline Status check_limits(std::span<const Limit> limits, const ModelConfig& config,
                           const std::string& path, std::string_view device) {
  for (std::uint32_t i = 0; i < config.layers; ++i)
    for (const Limit& limit : limits)
      if (limit.is_asked({config, config.per_layer[i]}))
        return Error{Code::unsupported,
                     fmt::format("{}: layer {} needs {}, which {} does not compute", path, i,
                                 limit.what, device)};
  return {};
}

}  // namespace quire
