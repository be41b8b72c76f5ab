// kernels/geometry.h - the shape of a model's cache: layer groups and the bytes of their blocks.
//
// A model and a storage policy (kernels/storage.h) give a Geometry. Cache, planner, kernels and
// files all compute from it. A *block* is one extent: the lane pages of all lanes (layer, KV head)
// of a group for P tokens, layer-major.
//
//   |<- page (layer 0, head 0) ->|<- (layer 0, head 1) ->| ... |<- (layer L-1, head H-1) ->|
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/format.h"

namespace quire {

struct Calibration;

enum class GroupKind : std::uint8_t {
  full,    // attention over everything before
  window,  // attention over the last `window` tokens; older blocks are freed
  latent,  // one wide lane per layer (MLA): key_dim wide, values are a prefix of the keys
  state,   // recurrent state: `state_bytes` per layer, snapshotted at a position
  recent,  // unencoded rows of layers whose own group is lossy: those of the open block, and of
           // the blocks before it and at the start that the policy keeps exact
};

struct LayerGroup {
  GroupKind kind = GroupKind::full;
  std::vector<std::uint32_t> layers;  // of the model, ascending; shared KV names only its owner
  std::uint32_t kv_heads = 0, key_dim = 0, value_dim = 0;
  std::uint32_t window = 0;       // tokens a query sees, itself included; 0 = all
  std::uint64_t state_bytes = 0;  // kind state only, per layer
  std::uint32_t recent_blocks = 0, sink_blocks = 0;  // kind recent only: kept besides the open one
  const Format* format = nullptr;
  // How many neighbours in `layers` share a page (Codec::layers); kind recent: are sealed together.
  std::uint32_t together = 1;
  // For calibrated codecs; its lanes are numbered by model layers.
  const Calibration *key_calibration = nullptr, *value_calibration = nullptr;

  std::uint32_t layers_per_page() const { return kind == GroupKind::recent ? 1 : together; }
  std::uint32_t lanes() const {
    return static_cast<std::uint32_t>(layers.size()) / layers_per_page() * kv_heads;
  }
  // Lossy: a block is written as a whole, when its last token has been computed.
  bool sealed() const { return kind != GroupKind::state && !format->exact; }
  // No query reads these rows after their block is sealed. So the rows of blocks that a step fills
  // whole need no place in the cache.
  bool open_only() const {
    return kind == GroupKind::recent && recent_blocks == 0 && sink_blocks == 0;
  }
};

// Where a model layer finds its pages.
struct LayerPlace {
  std::uint32_t group, index;  // index within the group; lane = index * kv_heads + head
};

// How much of its prompt a block of queries reads (kernels/select.h). The result is an
// approximation, so this is part of the layout. It applies to rows of prompts only.
struct SparsePrefill {
  enum class Way : std::uint8_t { none, antidiagonals, vertical_slash };
  Way way = Way::none;
  float threshold = 1;                       // antidiagonals: share of attention that is read
  std::uint32_t columns = 0, diagonals = 0;  // vertical_slash: how many

  bool operator==(const SparsePrefill&) const = default;
};

// Where the bytes of a page lie. The page means the same in every order.
enum class PageOrder : std::uint8_t {
  codec,  // as its codecs say (format/codec.h)
  cuda,   // as the GPU's kernels read it; rows beside lossy formats are bf16 (kernels/cuda/pages.h)
};

struct Geometry {
  std::uint32_t tokens_per_block = 32;
  std::vector<LayerGroup> groups;
  std::vector<LayerPlace> places;  // by model layer
  std::vector<LayerPlace> rows;    // where its rows are written; empty: the same as `places`
  SparsePrefill prefill = {};
  PageOrder order = PageOrder::codec;

  LayerPlace row_place(std::uint32_t layer) const {
    return rows.empty() ? places[layer] : rows[layer];
  }
  bool exact() const;  // no group is lossy
  // True if the rows of a prompt's block were computed together: a hit then takes whole blocks
  // only.
  bool sparse() const { return prefill.way != SparsePrefill::Way::none; }
  // True if several layers share a page: a step then ends at a block's end, as the block is encoded
  // when the last of these layers has computed it.
  bool by_block() const;

  // Between steps, a sequence of `tokens` tokens holds the blocks [first_block, block_end) of a
  // group, and the sinks of a recent group. While a step runs it also holds what the step's first
  // rows see.
  std::uint64_t first_block(const LayerGroup& g, std::uint64_t tokens) const;
  std::uint64_t block_end(const LayerGroup& g, std::uint64_t tokens) const {
    return (tokens + (g.sealed() ? 0 : tokens_per_block - 1)) / tokens_per_block;
  }

  PageShape page_shape(const LayerGroup& g) const {
    const std::uint32_t layers = g.layers_per_page();
    return {tokens_per_block, g.key_dim * layers, g.value_dim * layers};
  }
  std::size_t key_bytes(const LayerGroup& g) const { return g.format->key_bytes(page_shape(g)); }
  std::size_t page_bytes(const LayerGroup& g) const;   // keys, then values, rounded up to 64
  std::size_t block_bytes(const LayerGroup& g) const;  // all lanes, rounded up to 256
  double bytes_per_token(const LayerGroup& g) const;   // block_bytes / P
};

}  // namespace quire
