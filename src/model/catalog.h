// model/catalog.h - the cache shapes of well-known models, for planning without their files.
//
// Figures are those of the models' published configurations (config.json of each release; GPT-3:
// Brown et al. 2020, table 2.1; DeepSeek: latent 512 + 64 rotary per layer, DeepSeek-V2 report,
// section 2.1).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "kernels/storage.h"

namespace quire {

struct CatalogEntry {
  std::string_view name;  // as on the command line: "llama-3-70b"
  std::uint32_t layers, query_heads, kv_heads, head_dim, context;
  std::uint32_t window;        // of local layers; 0: every layer sees everything
  std::uint32_t global_every;  // with a window: every Nth layer sees everything; 0: none does
  std::uint32_t latent;        // MLA: elements per token and layer; 0: keys and values per head
  double parameters;           // billions
};

std::span<const CatalogEntry> catalog();
Result<const CatalogEntry*> find_in_catalog(std::string_view name);
Geometry catalog_geometry(const CatalogEntry& entry, std::uint32_t tokens_per_block,
                          const StoragePolicy& policy);

}  // namespace quire
