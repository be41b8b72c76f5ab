// kv/test_model.h - a toy model for tests: K/V rows are a function of (all tokens so far, position,
// lane), so a wrong block is noticed on the first read. Tests and the simulator use it; nothing
// else does.
//
//   Geometry g = toy_geometry({toy_group(GroupKind::full, 2, 1)});
//   toy_write(arena, g, 0, view, history, from, to);                        // after reserve
//   CHECK(toy_matches(arena, g, 0, view.blocks, history, 0, to));           // before commit
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "kernels/geometry.h"
#include "kv/cache.h"

namespace quire {

// f32 groups with the smallest lanes there are: one 4-byte key and value element.
inline LayerGroup toy_group(GroupKind kind, std::uint32_t layers, std::uint32_t heads,
                            std::uint32_t window = 0, std::uint32_t dim = 1) {
  LayerGroup g;
  g.kind = kind;
  for (std::uint32_t i = 0; i < layers; ++i) g.layers.push_back(i);
  g.kv_heads = heads;
  g.key_dim = dim;
  g.value_dim = kind == GroupKind::latent ? 0 : dim;
  g.window = window;
  g.state_bytes = kind == GroupKind::state ? 64 : 0;
  g.format = find_format("f32").value();
  return g;
}

inline Geometry toy_geometry(std::vector<LayerGroup> groups, std::uint32_t tokens_per_block = 4) {
  Geometry g;
  g.tokens_per_block = tokens_per_block;
  std::uint32_t layer = 0;
  for (std::uint32_t i = 0; i < groups.size(); ++i)
    for (std::uint32_t l = 0; l < groups[i].layers.size(); ++l) {
      groups[i].layers[l] = layer++;
      g.places.push_back({i, l});
    }
  g.groups = std::move(groups);
  return g;
}

// A lossy group of one layer and head, and where the rows of its open blocks are.
inline Geometry toy_lossy_geometry(std::uint32_t tokens_per_block, std::uint32_t window = 0,
                                   std::uint32_t recent_blocks = 0, std::uint32_t sink_blocks = 0) {
  LayerGroup sealed =
      toy_group(window ? GroupKind::window : GroupKind::full, 1, 1, window, /*dim=*/16);
  sealed.format = find_format("int8").value();
  LayerGroup recent = toy_group(GroupKind::recent, 1, 1, 0, 16);
  recent.recent_blocks = recent_blocks;
  recent.sink_blocks = sink_blocks;
  Geometry g = toy_geometry({sealed}, tokens_per_block);
  g.groups.push_back(recent);
  g.rows = {{1, 0}};
  return g;
}

inline std::unique_ptr<Memory> toy_memory(std::size_t bytes, std::size_t page_bytes = 4096) {
  return std::move(
      reserve_host_memory({.bytes = bytes, .page_bytes = page_bytes, .huge_pages = false}).value());
}

// The history of a sequence as one number per token: what a row must depend on.
class History {
 public:
  explicit History(std::uint64_t identity = 0) : identity_(identity) {}
  std::uint64_t at(std::uint32_t position) const { return sums_[position]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(sums_.size()); }
  void push(TokenId token, std::uint64_t change = 0) {
    const std::uint64_t before = sums_.empty() ? identity_ : sums_.back();
    sums_.push_back(mix64((before ^ std::uint64_t{token} << 20) + change));
  }
  void set(std::uint32_t position, std::uint64_t value) { sums_[position] = value; }
  void assign(std::span<const TokenId> tokens) {
    sums_.clear();
    for (TokenId t : tokens) push(t);
  }
  void resize(std::uint32_t n) { sums_.resize(n); }

 private:
  std::uint64_t identity_;
  std::vector<std::uint64_t> sums_;
};

inline float toy_value(std::uint64_t history, std::uint32_t position, std::uint32_t lane,
                       std::uint32_t element) {
  const std::uint64_t h =
      mix64(history ^ mix64(std::uint64_t{position} << 32 | lane << 8 | element));
  return static_cast<float>(h >> 40) + 1.0f;  // exact in f32, never a poison pattern
}

// What stands for an encoded block: a number for each of its tokens, at the start of each lane.
inline std::uint64_t toy_code(const History& history, std::uint32_t position, std::uint32_t lane) {
  return mix64(history.at(position) ^ lane) | 1;
}

// Writes rows [from, to) of one sequence into one group, as a forward pass would.
inline void toy_write(std::byte* arena, const Geometry& geometry, std::uint32_t group,
                      const KvSequenceView& view, const History& history, std::uint32_t from,
                      std::uint32_t to) {
  const LayerGroup& g = geometry.groups[group];
  const std::uint32_t p = geometry.tokens_per_block;
  const std::size_t page = geometry.page_bytes(g), keys = geometry.key_bytes(g);
  if (g.sealed()) {  // blocks that are full now
    for (std::uint32_t t = from / p * p; t < to / p * p; ++t)
      for (std::uint32_t lane = 0; lane < g.lanes(); ++lane) {
        const std::uint64_t code = toy_code(history, t, lane + group * 1000);
        std::memcpy(arena_at(arena, view.blocks[t / p]) + lane * page + t % p * sizeof code, &code,
                    sizeof code);
      }
    return;
  }
  for (std::uint32_t t = from; t < to; ++t) {
    if (view.blocks[t / p] == kNoBlock) continue;  // scratch of the pass
    std::byte* block = arena_at(arena, view.blocks[t / p]);
    for (std::uint32_t lane = 0; lane < g.lanes(); ++lane) {
      for (std::uint32_t d = 0; d < g.key_dim; ++d) {
        const float k = toy_value(history.at(t), t, lane + group * 1000, d);
        std::memcpy(block + lane * page + (d * p + t % p) * sizeof k, &k, sizeof k);
      }
      for (std::uint32_t d = 0; d < g.value_dim; ++d) {
        const float v = toy_value(history.at(t), t, lane + group * 1000, 128 + d);
        std::memcpy(block + lane * page + keys + (t % p * g.value_dim + d) * sizeof v, &v,
                    sizeof v);
      }
    }
  }
}

// Reads rows [from, to), as far as a sequence of `to` tokens has them: false if any is not what
// this history must have written.
inline bool toy_matches(const std::byte* arena, const Geometry& geometry, std::uint32_t group,
                        const ArenaOffset* blocks, const History& history, std::uint32_t from,
                        std::uint32_t to) {
  const LayerGroup& g = geometry.groups[group];
  const std::uint32_t p = geometry.tokens_per_block;
  const std::size_t page = geometry.page_bytes(g), keys = geometry.key_bytes(g);
  if (g.sealed()) {
    for (std::uint32_t t = from / p * p; t < to / p * p; ++t)
      for (std::uint32_t lane = 0; lane < g.lanes(); ++lane) {
        std::uint64_t code;
        std::memcpy(&code,
                    arena + static_cast<std::size_t>(blocks[t / p]) * kArenaUnit + lane * page +
                        t % p * sizeof code,
                    sizeof code);
        if (code != toy_code(history, t, lane + group * 1000)) return false;
      }
    return true;
  }
  const auto first = static_cast<std::uint32_t>(geometry.first_block(g, to)) * p;
  for (std::uint32_t t = from; t < to; ++t) {
    if (g.kind == GroupKind::recent && t < first && t / p >= g.sink_blocks) continue;
    const std::byte* block = arena + static_cast<std::size_t>(blocks[t / p]) * kArenaUnit;
    for (std::uint32_t lane = 0; lane < g.lanes(); ++lane) {
      for (std::uint32_t d = 0; d < g.key_dim; ++d) {
        float k;
        std::memcpy(&k, block + lane * page + (d * p + t % p) * sizeof k, sizeof k);
        if (k != toy_value(history.at(t), t, lane + group * 1000, d)) return false;
      }
      for (std::uint32_t d = 0; d < g.value_dim; ++d) {
        float v;
        std::memcpy(&v, block + lane * page + keys + (t % p * g.value_dim + d) * sizeof v,
                    sizeof v);
        if (v != toy_value(history.at(t), t, lane + group * 1000, 128 + d)) return false;
      }
    }
  }
  return true;
}

// A recurrent state after `length` tokens: the history there, in every 8 bytes of the first 64.
inline void toy_write_state(std::byte* arena, ArenaOffset block, const History& history,
                            std::uint32_t length) {
  const std::uint64_t h = mix64(history.at(length - 1));
  for (int i = 0; i < 8; ++i) std::memcpy(arena_at(arena, block) + i * 8, &h, 8);
}
inline bool toy_state_matches(const std::byte* arena, ArenaOffset block, const History& history,
                              std::uint32_t length) {
  const std::uint64_t h = length == 0 ? 0 : mix64(history.at(length - 1));
  std::uint64_t v;
  for (int i = 0; i < 8; ++i) {
    std::memcpy(&v, arena + static_cast<std::size_t>(block) * kArenaUnit + i * 8, 8);
    if (v != h) return false;
  }
  return true;
}

}  // namespace quire
