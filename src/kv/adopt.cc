// Blocks that come from below memory: room for them, and how they become part of a sequence.
#include <algorithm>

#include "kv/core.h"
#include "kv/planted.h"

namespace quire {

std::optional<Landing> CacheCore::land(const SequenceState& s, std::uint32_t group,
                                       std::uint64_t& count) {
  const CacheLayout::Group& g = s.layout->groups[group];
  if (arena.over_budget_bytes() > 0) return std::nullopt;
  BlockRef room = take(g.size_class, s);
  if (room.empty()) return std::nullopt;
  BlockFence fence = planted(Bug::landing_not_fenced) ? BlockFence() : pool.fence(room.id());
  return Landing(std::move(room), std::move(fence), g.bytes, count);
}

// Whether every window of the sequence has what its next token needs, if these blocks follow
// `first`.
bool CacheCore::windows_whole(const SequenceState& s, std::uint32_t first,
                              std::span<const LandedBlock> blocks) const {
  const auto end = first + static_cast<std::uint32_t>(blocks.size());
  const std::uint32_t tokens = end * s.tokens_per_block();
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    const BlockTable& t = s.tables[g];
    for (std::uint32_t b = 0; b < end; ++b) {
      if (!s.layout->wants(g, b, tokens)) continue;
      if (b < first ? b >= t.count() || t.refs[b].empty() : blocks[b - first][g].empty())
        return false;
    }
  }
  return true;
}

std::uint32_t CacheCore::adopt(SequenceState& s, std::uint32_t first,
                               std::span<LandedBlock> blocks) {
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  CHECK(s.phase == Phase::running && s.steps == 0 && s.layout->state == 0);
  CHECK(first == s.length / tokens_per_block);
  const std::uint32_t most = s.serve_limit() / tokens_per_block;
  blocks = blocks.first(std::min<std::size_t>(blocks.size(), most - std::min(most, first)));
  for (const BlockTable& t : s.tables)
    if (!t.lanes.empty()) return 0;  // it reads less than its full chain
  while (!blocks.empty() && !windows_whole(s, first, blocks))
    blocks = blocks.first(blocks.size() - 1);
  if (blocks.empty()) return 0;
  const auto end = first + static_cast<std::uint32_t>(blocks.size());
  s.length = end * tokens_per_block;
  s.computed = std::max(s.computed, s.length);
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    BlockTable& t = s.tables[g];
    t.cut(first);  // rows of an open block are in the block that has come
    for (LandedBlock& block : blocks) t.push(block[g].take());
  }
  const std::uint32_t before = s.published;
  publish(s, end);
  leave_window(s);
  counters.tokens_adopted += (end - first) * tokens_per_block;
  journal.add({.time = tick(),
               .request = s.options.request,
               .key = s.keys[end - 1].prefix(),
               .bytes = s.published > before ? store.bytes(s.cursor.path[s.published - 1]) : 0,
               .block = first,
               .tokens = (end - first) * tokens_per_block,
               .reason = Reason::moved});
  return end - first;
}

std::optional<Landing> KvCache::land(const Sequence& s, std::uint32_t group) {
  core_->tick();
  return core_->land(*s.state_, group, core_->landings);
}
std::uint32_t KvCache::adopt(Sequence& s, std::uint32_t first, std::span<LandedBlock> blocks) {
  core_->tick();
  return core_->adopt(*s.state_, first, blocks);
}
bool KvCache::wants(const Sequence& s, std::uint32_t group, std::uint32_t block,
                    std::uint32_t tokens) const {
  return s.state_->layout->wants(group, block, tokens);
}
std::uint32_t KvCache::serve_limit(const Sequence& s) const { return s.state_->serve_limit(); }
std::uint64_t KvCache::landings() const { return core_->landings; }
bool KvCache::offer_rest(std::uint32_t& place, Offer why) {
  return core_->store.offer_rest(place, why);
}
bool KvCache::offer(const BlockKey& key, Offer why) { return core_->store.offer(key, why); }
void KvCache::not_below(const BlockKey& key, std::uint32_t group) {
  core_->store.not_below(key, group);
}

}  // namespace quire
