// Blocks of a sequence that are not in the arena: they lie below, under the keys of its chain.
#include <algorithm>

#include "kv/below.h"
#include "kv/core.h"

namespace quire {

void CacheCore::cool(SequenceState& s, std::uint32_t group, std::uint32_t end) {
  BlockTable& t = s.tables[group];
  CHECK(s.phase == Phase::running && s.steps == 0 && t.lanes.empty());
  CHECK(s.layout->chain >> group & 1 && end * s.tokens_per_block() <= s.length);
  for (; t.first < end; ++t.first) {
    t.refs[t.first] = {};
    t.offsets[t.first] = kNoBlock;
  }
}

void CacheCore::adopt_cold(SequenceState& s, std::uint32_t end) {
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  CHECK(s.phase == Phase::running && s.steps == 0 && s.layout->state == 0 && !s.options.publish);
  CHECK(end * tokens_per_block <= s.serve_limit() && end * tokens_per_block >= s.length);
  const std::uint32_t first = s.length / tokens_per_block;
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    const bool chain = s.layout->chain >> g & 1;
    CHECK(chain || s.layout->groups[g].open_only);
    if (chain && first < end) cool(s, g, first);  // cold blocks are the first ones
    BlockTable& t = s.tables[g];
    t.cut(first);
    while (t.count() < end) t.push({});
    if (chain) t.first = end;
    if (!chain) t.first = std::min(t.count(), s.layout->first_block(g, end * tokens_per_block));
  }
  s.length = end * tokens_per_block;
  s.computed = std::max(s.computed, s.length);
  counters.tokens_adopted += (end - first) * tokens_per_block;
  journal.add({.time = tick(),
               .request = s.options.request,
               .block = first,
               .tokens = (end - first) * tokens_per_block,
               .reason = Reason::moved});
}

void CacheCore::lose(SequenceState& s, std::uint32_t block) {
  CHECK(s.phase == Phase::running && s.steps == 0 && !s.options.publish);
  if (block * s.tokens_per_block() >= s.length) return;
  set_path(s, std::min(s.published, block));
  s.length = block * s.tokens_per_block();
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g)
    s.tables[g].cut(s.layout->block_end(g, s.length));
}

std::span<const BlockKey> KvCache::chain_keys(Sequence& s) {
  core_->compute_keys(*s.state_);
  return s.state_->keys;
}
OfferedBlock KvCache::offered(const Sequence& sequence, std::uint32_t group,
                              std::uint32_t block) const {
  const SequenceState& s = *sequence.state_;
  const std::uint32_t tokens = s.tokens_per_block();
  const BlockRef& ref = s.tables[group].refs[block];
  CHECK(!ref.empty() && block < s.keys.size() && (block + 1) * tokens <= s.length);
  return {.key = s.keys[block],
          .layout = *s.layout,
          .group = group,
          .tokens = std::span(s.tokens).subspan(std::size_t{block} * tokens, tokens),
          .bytes = {ref.bytes(), s.layout->groups[group].bytes},
          .tenant = core_->store.tenants().at(core_->store.tenant(s.cursor.root)).name,
          .hits = 0,
          .recompute_ns = core_->store.block_ns(tokens, block * tokens)};
}
std::uint32_t KvCache::cold_blocks(const Sequence& s, std::uint32_t group) const {
  return s.state_->tables[group].first;
}
void KvCache::cool(Sequence& s, std::uint32_t group, std::uint32_t end) {
  core_->cool(*s.state_, group, end);
}
void KvCache::adopt_cold(Sequence& s, std::uint32_t end) { core_->adopt_cold(*s.state_, end); }
void KvCache::lose(Sequence& s, std::uint32_t block) { core_->lose(*s.state_, block); }
std::optional<Landing> KvCache::lend(const Sequence& s, std::uint32_t group) {
  core_->tick();
  return core_->land(*s.state_, group, core_->lent);
}
void KvCache::leave_behind(Landing& lent) { lent.count_in(core_->landings); }

}  // namespace quire
