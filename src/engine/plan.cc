#include "engine/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "kernels/kv_view.h"
#include "kv/retain/policy.h"
#include "kv/slab_shape.h"

namespace quire {
namespace {

std::uint64_t blocks_for(const Geometry& g, std::uint64_t tokens) {
  return (tokens + g.tokens_per_block - 1) / g.tokens_per_block;
}

// Whether the group's memory does not grow with every token.
bool bounded(const LayerGroup& g) { return g.window > 0 || g.kind == GroupKind::recent; }

// Bytes that the arena commits for this number of blocks: whole slabs.
std::uint64_t slab_bytes_for(std::uint64_t block_bytes, std::uint64_t blocks,
                             std::uint64_t budget = UINT64_MAX,
                             std::size_t memory_page = kMemoryPage) {
  if (blocks == 0) return 0;
  const SlabShape slab = slab_shape(block_bytes, budget, memory_page);
  return (blocks + slab.capacity - 1) / slab.capacity * slab.bytes;
}

// Blocks of a group for `concurrency` sequences, the first `shared` tokens stored once for each of
// `prefix_groups`.
std::uint64_t group_blocks(const Geometry& g, const LayerGroup& group, const PlanRequest& r,
                           std::uint64_t context, std::uint64_t concurrency, bool sharing) {
  const std::uint64_t own = resident_blocks(g, group, context);
  const std::uint64_t shared =
      sharing ? std::min(context, r.shared_prefix) / g.tokens_per_block : 0;
  if (shared == 0 || bounded(group))
    return own * concurrency;  // a window has left the prefix behind
  const std::uint64_t groups = std::min(concurrency, std::max<std::uint64_t>(r.prefix_groups, 1));
  return shared * groups + (own - shared) * concurrency;
}

std::uint64_t pool_bytes(const Geometry& g, const PlanRequest& r, std::uint64_t context,
                         std::uint64_t concurrency, bool sharing) {
  std::map<std::uint64_t, std::uint64_t>
      blocks;  // by size: groups whose blocks are equally large share slabs
  for (const LayerGroup& group : g.groups)
    blocks[g.block_bytes(group)] += group_blocks(g, group, r, context, concurrency, sharing);
  std::uint64_t bytes = 0;
  for (const auto& [block_bytes, count] : blocks) bytes += slab_bytes_for(block_bytes, count);
  return bytes;
}

// The largest n in [0, limit] with fits(n); fits is monotone.
template <class Fits>
std::uint64_t largest(std::uint64_t limit, Fits fits) {
  std::uint64_t low = 0, high = limit;
  while (low < high) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

std::string worked_formula(const Geometry& geometry) {
  std::string text;
  for (const LayerGroup& g : geometry.groups) {
    if (!text.empty()) text += " + ";
    const PageShape page = geometry.page_shape(g);
    const double element = g.format->effective_bits(page) / 8;
    if (g.kind == GroupKind::latent || g.key_dim != g.value_dim)  // and rows of latent groups
      text += fmt::format("{} layers x {} latent elements x {:g} bytes", g.layers.size(),
                          g.key_dim + g.value_dim, element);
    else
      text += fmt::format("2 x {} layers x {} KV heads x {} dims x {:g} bytes", g.layers.size(),
                          g.kv_heads, g.key_dim, element);
    text += fmt::format(" = {:.10g} bytes/token", geometry.bytes_per_token(g));
    if (g.window > 0) text += fmt::format(" (last {} tokens only)", g.window);
    if (g.kind == GroupKind::recent)
      text += fmt::format(" (exact rows of the open block{})",
                          g.open_only() ? ""
                                        : fmt::format(", the {} before it and the first {}",
                                                      g.recent_blocks, g.sink_blocks));
  }
  return text;
}

}  // namespace

std::uint64_t resident_blocks(const Geometry& geometry, const LayerGroup& group,
                              std::uint64_t tokens) {
  if (group.kind == GroupKind::state) return 1;
  const std::uint64_t first = geometry.first_block(group, tokens);
  return geometry.block_end(group, tokens) - first +
         std::min<std::uint64_t>(first, group.sink_blocks);
}

Plan make_plan(const Geometry& geometry, const PlanRequest& request) {
  Plan plan{.context = request.context,
            .concurrency = request.concurrency,
            .groups = {},
            .formula = worked_formula(geometry)};
  for (const LayerGroup& g : geometry.groups)
    (bounded(g) ? plan.window_bytes_per_token : plan.bytes_per_token) +=
        geometry.bytes_per_token(g);

  constexpr std::uint64_t kContextMax = std::uint64_t{1} << 32,
                          kSequencesMax = std::uint64_t{1} << 24;
  const std::uint64_t room = request.memory_bytes > request.weights_bytes
                                 ? request.memory_bytes - request.weights_bytes
                                 : 0;
  // While sequences grow they have an open block, one more than when the context is full.
  const auto pool = [&](std::uint64_t context, std::uint64_t concurrency, bool sharing) {
    return std::max(pool_bytes(geometry, request, context, concurrency, sharing),
                    pool_bytes(geometry, request, context - (context > 0), concurrency, sharing));
  };
  const auto fits = [&](std::uint64_t context, std::uint64_t concurrency, bool sharing) {
    return pool(context, concurrency, sharing) <= room;
  };
  if (request.memory_bytes > 0) {
    plan.max_tokens = largest(kContextMax, [&](std::uint64_t n) { return fits(n, 1, false); });
    if (plan.context == 0)
      plan.context = largest(kContextMax, [&](std::uint64_t n) {
        return fits(n, std::max<std::uint64_t>(plan.concurrency, 1), false);
      });
    if (plan.context > 0) {
      const auto most = [&](bool sharing) {
        return largest(kSequencesMax,
                       [&](std::uint64_t n) { return fits(plan.context, n, sharing); });
      };
      plan.max_concurrency = most(false);
      plan.shared_concurrency = most(true);
    }
    if (plan.concurrency == 0) plan.concurrency = plan.max_concurrency;
  } else {
    plan.max_concurrency = plan.concurrency = std::max<std::uint64_t>(plan.concurrency, 1);
  }
  for (const LayerGroup& g : geometry.groups) {
    const std::uint64_t per_sequence =
        resident_blocks(geometry, g, plan.context) * geometry.block_bytes(g);
    plan.groups.push_back({g.kind, static_cast<std::uint32_t>(g.layers.size()), g.lanes(), g.window,
                           geometry.block_bytes(g), geometry.bytes_per_token(g), per_sequence});
    plan.bytes_per_sequence += per_sequence;
    plan.blocks += group_blocks(geometry, g, request, plan.context, plan.concurrency, false);
  }
  plan.kv_pool_bytes = pool(plan.context, plan.concurrency, false);
  const std::uint64_t shared = pool(plan.context, plan.concurrency, true);
  if (shared > 0)
    plan.deduplication = static_cast<double>(plan.kv_pool_bytes) / static_cast<double>(shared);
  return plan;
}

std::uint64_t sequence_bytes(const Geometry& geometry, std::uint64_t tokens) {
  std::uint64_t bytes = 0;
  for (const LayerGroup& g : geometry.groups)
    bytes += resident_blocks(geometry, g, tokens) * geometry.block_bytes(g);
  return bytes;
}

namespace {
// Pages that each lane keeps of a prompt, the last one not full.
std::uint64_t lane_pages(const Geometry& geometry, const RetainPolicy& policy,
                         std::uint64_t prompt) {
  return blocks_for(geometry, policy.budget(static_cast<std::uint32_t>(prompt))) + 1;
}
std::uint64_t page_extent(const Geometry& geometry, const LayerGroup& g) {
  return (geometry.page_bytes(g) + kArenaUnit - 1) / kArenaUnit * kArenaUnit;
}
}  // namespace

std::uint64_t retained_bytes(const Geometry& geometry, const RetainPolicy& policy,
                             std::uint64_t prompt) {
  std::uint64_t bytes = 0;
  for (const LayerGroup& g : geometry.groups)
    if (retains(g))
      bytes += g.lanes() * lane_pages(geometry, policy, prompt) * page_extent(geometry, g);
  return bytes;
}

std::uint64_t request_bytes(const Geometry& geometry, const RequestShape& asked,
                            const RetainPolicy* retain) {
  RequestShape shape = asked;
  if (retain && asks(retain->needs(), Signal::peak_mass))  // the prompt is read again
    shape.answer = std::max(shape.answer, shape.prompt + 2 * geometry.tokens_per_block);
  if (retain && retain->every > 0)  // what leaves makes room for what comes
    shape.answer = std::min<std::uint64_t>(
        shape.answer, retain->every + retain->tokens + 2 * geometry.tokens_per_block);
  std::map<std::uint64_t, std::uint64_t> blocks;  // by size
  for (const LayerGroup& group : geometry.groups) {
    // Answers share the whole blocks of the prompt. Each has its own other blocks, which include a
    // copy of the block in which the prompt ends.
    const std::uint64_t shared = shape.prompt / geometry.tokens_per_block;
    const std::uint64_t all = geometry.block_end(group, shape.prompt + shape.answer);
    std::uint64_t count = shared + (all - shared) * shape.width + (shape.width > 1 ? 1 : 0);
    if (group.kind == GroupKind::state) {
      count = 2 * shape.width;
    } else if (group.open_only()) {
      count = std::min(all, std::uint64_t{2}) * shape.width +
              1;  // a step may finish one and begin another
    } else if (group.kind == GroupKind::recent) {
      const std::uint64_t kept = group.recent_blocks + group.sink_blocks + 2;
      const std::uint64_t reading =
          std::min(blocks_for(geometry, shape.prompt), kept + blocks_for(geometry, shape.chunk));
      count = std::min(count, std::max(reading, std::min(all, kept) * shape.width + 1));
    } else if (group.window > 0) {
      // While a chunk is computed its first rows still see a window before it.
      const std::uint64_t reading = std::min(blocks_for(geometry, shape.prompt),
                                             blocks_for(geometry, group.window + shape.chunk) + 1);
      const std::uint64_t answering =
          std::min(all, blocks_for(geometry, group.window) + 1) * shape.width + 1;
      count = std::min(count, std::max(reading, answering));
    }
    blocks[geometry.block_bytes(group)] += count;
    // For a moment memory holds a prompt and the pages that are kept of it; while decoding, the
    // pages before and after a compaction.
    if (retain && retains(group))
      blocks[page_extent(geometry, group)] += group.lanes() *
                                              lane_pages(geometry, *retain, shape.prompt) *
                                              (retain->every > 0 ? shape.width + 1 : 1);
  }
  std::uint64_t bytes = 0;
  for (const auto& [block_bytes, count] : blocks)
    bytes += slab_bytes_for(block_bytes, count, asked.cache_bytes, asked.memory_page);
  return bytes;
}

}  // namespace quire
