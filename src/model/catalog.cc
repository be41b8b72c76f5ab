#include "model/catalog.h"

#include <string>

namespace quire {
namespace {

// name                    layers  Hq  Hkv  dim  context  window  global latent  billions
constexpr CatalogEntry kCatalog[] = {
    {"smollm2-135m", 30, 9, 3, 64, 8192, 0, 0, 0, 0.135},
    {"smollm2-360m", 32, 15, 5, 64, 8192, 0, 0, 0, 0.362},
    {"smollm2-1.7b", 24, 32, 32, 64, 8192, 0, 0, 0, 1.71},
    {"tinyllama-1.1b", 22, 32, 4, 64, 2048, 0, 0, 0, 1.10},
    {"llama-2-7b", 32, 32, 32, 128, 4096, 0, 0, 0, 6.74},
    {"llama-2-13b", 40, 40, 40, 128, 4096, 0, 0, 0, 13.0},
    {"llama-2-70b", 80, 64, 8, 128, 4096, 0, 0, 0, 69.0},
    {"llama-3-8b", 32, 32, 8, 128, 8192, 0, 0, 0, 8.03},
    {"llama-3-70b", 80, 64, 8, 128, 8192, 0, 0, 0, 70.6},
    {"llama-3.1-8b", 32, 32, 8, 128, 131072, 0, 0, 0, 8.03},
    {"llama-3.1-70b", 80, 64, 8, 128, 131072, 0, 0, 0, 70.6},
    {"llama-3.1-405b", 126, 128, 8, 128, 131072, 0, 0, 0, 405.9},
    {"llama-3.2-1b", 16, 32, 8, 64, 131072, 0, 0, 0, 1.24},
    {"llama-3.2-3b", 28, 24, 8, 128, 131072, 0, 0, 0, 3.21},
    {"llama-3.3-70b", 80, 64, 8, 128, 131072, 0, 0, 0, 70.6},
    {"mistral-7b", 32, 32, 8, 128, 32768, 0, 0, 0, 7.25},
    {"mistral-7b-v0.1", 32, 32, 8, 128, 32768, 4096, 0, 0, 7.24},
    {"mixtral-8x7b", 32, 32, 8, 128, 32768, 0, 0, 0, 46.7},
    {"mistral-nemo-12b", 40, 32, 8, 128, 131072, 0, 0, 0, 12.2},
    {"gpt-2", 12, 12, 12, 64, 1024, 0, 0, 0, 0.124},
    {"gpt-3-175b", 96, 96, 96, 128, 2048, 0, 0, 0, 175.0},
    {"phi-3-mini", 32, 32, 32, 96, 4096, 0, 0, 0, 3.82},
    {"phi-4", 40, 40, 10, 128, 16384, 0, 0, 0, 14.7},
    {"phi-4-mini", 32, 24, 8, 128, 131072, 0, 0, 0, 3.84},
    {"smollm3-3b", 36, 16, 4, 128, 65536, 0, 0, 0, 3.08},
    {"olmo-2-1b", 16, 16, 16, 128, 4096, 0, 0, 0, 1.48},
    {"glm-4-9b", 40, 32, 2, 128, 32768, 0, 0, 0, 9.4},
    {"starcoder2-3b", 30, 24, 2, 128, 16384, 4096, 0, 0, 3.03},
    {"falcon-7b", 32, 71, 1, 64, 2048, 0, 0, 0, 7.22},
    {"gpt-oss-20b", 24, 64, 8, 64, 131072, 128, 2, 0, 20.9},
    {"gpt-oss-120b", 36, 64, 8, 64, 131072, 128, 2, 0, 117.0},
    {"gemma-2b", 18, 8, 1, 256, 8192, 0, 0, 0, 2.51},
    {"gemma-7b", 28, 16, 16, 256, 8192, 0, 0, 0, 8.54},
    {"gemma-2-9b", 42, 16, 8, 256, 8192, 4096, 2, 0, 9.24},
    {"gemma-3-270m", 18, 4, 1, 256, 32768, 512, 6, 0, 0.268},
    {"gemma-3-1b", 26, 4, 1, 256, 32768, 512, 6, 0, 1.0},
    {"gemma-3-4b", 34, 8, 4, 256, 131072, 1024, 6, 0, 4.3},
    {"gemma-3-12b", 48, 16, 8, 256, 131072, 1024, 6, 0, 12.2},
    {"gemma-3-27b", 62, 32, 16, 128, 131072, 1024, 6, 0, 27.4},
    {"qwen2.5-0.5b", 24, 14, 2, 64, 32768, 0, 0, 0, 0.494},
    {"qwen2.5-7b", 28, 28, 4, 128, 131072, 0, 0, 0, 7.62},
    {"qwen2.5-72b", 80, 64, 8, 128, 131072, 0, 0, 0, 72.7},
    {"qwen3-0.6b", 28, 16, 8, 128, 40960, 0, 0, 0, 0.752},
    {"qwen3-8b", 36, 32, 8, 128, 40960, 0, 0, 0, 8.19},
    {"qwen3-32b", 64, 64, 8, 128, 40960, 0, 0, 0, 32.8},
    {"qwen3-30b-a3b", 48, 32, 4, 128, 40960, 0, 0, 0, 30.5},
    {"deepseek-67b", 95, 64, 8, 128, 4096, 0, 0, 0, 67.4},
    {"deepseek-v2-lite", 27, 16, 16, 128, 163840, 0, 0, 576, 15.7},
    {"deepseek-v2", 60, 128, 128, 128, 131072, 0, 0, 576, 236.0},
    {"deepseek-v3", 61, 128, 128, 128, 163840, 0, 0, 576, 671.0},
    {"deepseek-r1", 61, 128, 128, 128, 163840, 0, 0, 576, 671.0},
    {"kimi-k2", 61, 64, 64, 112, 131072, 0, 0, 576, 1026.0},
};
constexpr std::uint32_t kRotated = 64;  // of a latent row

}  // namespace

std::span<const CatalogEntry> catalog() { return kCatalog; }

Result<const CatalogEntry*> find_in_catalog(std::string_view name) {
  std::string known;
  for (const CatalogEntry& e : kCatalog) {
    if (e.name == name) return &e;
    known += ' ' + std::string(e.name);
  }
  return Error{Code::not_found, "no model '" + std::string(name) +
                                    "' in the table; give a file, or one of:" + known};
}

Geometry catalog_geometry(const CatalogEntry& e, std::uint32_t tokens_per_block,
                          const StoragePolicy& policy) {
  const LayerShape full{.kind = e.latent ? GroupKind::latent : GroupKind::full,
                        .kv_heads = e.latent ? 1 : e.kv_heads,
                        .key_dim = e.latent ? kRotated : e.head_dim,
                        .value_dim = e.latent ? e.latent - kRotated : e.head_dim,
                        .window = 0};
  LayerShape local = full;
  local.kind = GroupKind::window;
  local.window = e.window;
  std::vector<LayerShape> layers;
  for (std::uint32_t l = 0; l < e.layers; ++l) {
    const bool sees_all = e.window == 0 || (e.global_every > 0 && (l + 1) % e.global_every == 0);
    layers.push_back(sees_all ? full : local);
  }
  return build_geometry(layers, tokens_per_block, policy);
}

}  // namespace quire
