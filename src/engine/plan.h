// engine/plan.h - how much cache a model needs, from the same geometry that allocates it.
//
//   Plan p = make_plan(geometry, {.context = 8192, .concurrency = 32});
//   p.kv_pool_bytes;            // what 32 sequences of 8,192 tokens take from the arena
//
// One of memory, context and concurrency may be 0: the plan solves for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/geometry.h"
#include "kv/memory.h"

namespace quire {

struct PlanRequest {
  std::uint64_t memory_bytes = 0;  // for weights and cache together
  std::uint64_t weights_bytes = 0;
  std::uint64_t context = 0, concurrency = 0;
  std::uint64_t shared_prefix = 0;  // first tokens that every sequence of a group has in common
  std::uint64_t prefix_groups = 1;
};

struct PlanGroup {
  GroupKind kind;
  std::uint32_t layers, lanes, window;
  std::uint64_t block_bytes;
  double bytes_per_token;            // while it grows
  std::uint64_t bytes_per_sequence;  // at the context, rounded up to blocks
};

struct Plan {
  double bytes_per_token = 0;            // of groups that grow with every token
  double window_bytes_per_token = 0;     // of groups that stop at their window
  std::uint64_t bytes_per_sequence = 0;  // at the context
  std::uint64_t context = 0, concurrency = 0;
  std::uint64_t max_concurrency = 0;  // sequences that fit the memory; without memory, concurrency
  std::uint64_t kv_pool_bytes = 0;    // whole slabs for `concurrency` sequences
  std::uint64_t max_tokens = 0;       // that fit the memory, in one sequence after the other
  std::uint64_t blocks = 0;
  std::uint64_t shared_concurrency = 0;  // with the shared prefix stored once per group
  double deduplication = 1;              // tokens asked for / tokens stored
  std::vector<PlanGroup> groups;
  std::string formula;  // worked, with this model's numbers
};

Plan make_plan(const Geometry& geometry, const PlanRequest& request);

// Blocks of one sequence that a group keeps at this length: all, or those its window can still
// need. That is between steps: while a chunk is computed, a window also holds the blocks that the
// chunk's first rows still see.
std::uint64_t resident_blocks(const Geometry& geometry, const LayerGroup& group,
                              std::uint64_t tokens);

// One request that has the cache to itself: `width` answers after one prompt that is read in
// chunks.
struct RequestShape {
  std::uint64_t prompt = 0, answer = 0, width = 1, chunk = 512;
  // Of the cache: its budget, and the pages that its memory comes in. Slabs depend on both.
  std::uint64_t cache_bytes = UINT64_MAX;
  std::size_t memory_page = kMemoryPage;
};
// Bytes of whole slabs that the request may need at its worst moment.
struct RetainPolicy;
std::uint64_t request_bytes(const Geometry& geometry, const RequestShape& shape,
                            const RetainPolicy* retain = nullptr);
// Bytes of the lane pages that a policy leaves of a prompt.
std::uint64_t retained_bytes(const Geometry& geometry, const RetainPolicy& policy,
                             std::uint64_t prompt);
// Bytes of the blocks that one sequence of this length holds between steps.
std::uint64_t sequence_bytes(const Geometry& geometry, std::uint64_t tokens);

}  // namespace quire
