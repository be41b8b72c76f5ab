// sim/reference.h - what the prefix cache must hold, as a flat map: the model that the real index
// is compared with.
//
// It learns of blocks from the simulator (which knows every prompt it made up) and of their coming
// and going from the cache's journal, and finds the longest servable prefix by trying every length.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/geometry.h"
#include "kv/journal.h"
#include "kv/key.h"
#include "kv/token.h"

namespace quire {

class Reference {
 public:
  explicit Reference(std::uint32_t tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  // A block that some prompt has: its key, what it follows, its tokens, and a digest of its
  // changes.
  void learn(const BlockKey& key, std::uint64_t parent, std::span<const TokenId> tokens,
             std::uint64_t change);

  void stored(std::uint64_t key, std::uint32_t groups);
  void evicted(std::uint64_t key, std::uint32_t group);
  std::uint32_t groups_of(std::uint64_t key) const;
  bool has_children(std::uint64_t key) const;  // that hold any block

  // The most tokens that a prompt may be served, and the most in whole blocks. If `partial` is
  // false, whole blocks only.
  struct Served {
    std::uint32_t best, whole;
  };
  Served served(const Geometry& geometry, std::uint64_t root, std::span<const BlockKey> keys,
                std::span<const TokenId> tokens, std::span<const std::uint64_t> changes,
                std::uint32_t limit) const;

  std::uint64_t blocks() const { return blocks_; }

 private:
  struct Block {
    std::uint64_t parent = 0, change = 0;
    std::vector<TokenId> tokens;
    std::uint32_t groups = 0;  // bits: present
  };
  std::uint32_t tokens_per_block_;
  std::uint64_t blocks_ = 0;
  std::unordered_map<std::uint64_t, Block> known_;                          // by key prefix
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> children_;  // by parent
};

}  // namespace quire
