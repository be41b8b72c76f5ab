// Ragged retention: lanes that keep different tokens, each in pages of its own.
#include <fmt/format.h>

#include <algorithm>

#include "kv/core.h"

namespace quire {

Status CacheCore::compact(SequenceState& s, std::uint32_t group, std::uint32_t end,
                          std::span<const std::span<const std::uint32_t>> keep) {
  CHECK(s.phase == Phase::running && s.steps == 0);
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  const LayerGroup& g = s.layout->geometry.groups[group];
  if (!(s.layout->chain >> group & 1))
    return Error{Code::unsupported, fmt::format("layer group {} has no lanes to compact", group)};
  if (!g.format->slots_stand_alone(s.layout->geometry.page_shape(g)))
    return Error{Code::unsupported,
                 fmt::format("format {} keeps or drops whole blocks, not single tokens; "
                             "hadamard-int4 keeps any",
                             g.format->name)};
  if (keep.size() != g.lanes() || end % tokens_per_block != 0 || end > s.length)
    return Error{
        Code::invalid,
        fmt::format("compacting {} tokens of {} in {} lanes: whole blocks and {} lanes wanted", end,
                    s.length, keep.size(), g.lanes())};
  BlockTable& t = s.tables[group];
  const std::uint32_t old_end = t.first * tokens_per_block;
  if (end < old_end)
    return Error{Code::invalid, fmt::format("tokens before {} are in lanes already", old_end)};
  for (std::size_t lane = 0; lane < keep.size(); ++lane) {
    for (std::size_t i = 0; i < keep[lane].size(); ++i) {
      const std::uint32_t p = keep[lane][i];
      const bool there = p >= old_end || std::ranges::binary_search(t.lanes[lane].positions, p);
      if (p >= end || (i > 0 && keep[lane][i - 1] >= p) || !there)
        return Error{Code::invalid, fmt::format("lane {} cannot keep token {}", lane, p)};
    }
  }

  taken.clear();
  const SizeClass page_class = s.layout->groups[group].page_class;
  std::fill(needed.begin(), needed.end(), 0);
  std::uint32_t& pages = needed[static_cast<std::size_t>(page_class)];
  for (const auto& positions : keep)
    pages +=
        static_cast<std::uint32_t>((positions.size() + tokens_per_block - 1) / tokens_per_block);
  for (std::uint32_t i = 0; i < pages; ++i) {
    taken.push_back(take(page_class));
    if (!taken.back().empty()) continue;
    taken.clear();
    return no_room();
  }

  // Nothing fails from here on. What is full and pure is published while its blocks are still at
  // hand.
  publish(s);
  s.pure_until =
      std::min(s.pure_until,
               s.published * tokens_per_block >= end ? s.length : s.published * tokens_per_block);
  const Geometry& geometry = s.layout->geometry;
  const std::size_t page_bytes = geometry.page_bytes(g);
  const PageShape shape = geometry.page_shape(g);
  std::size_t next = 0;
  std::vector<LaneRun> lanes(keep.size());
  for (std::size_t lane = 0; lane < keep.size(); ++lane) {
    LaneRun& run = lanes[lane];
    run.positions.assign(keep[lane].begin(), keep[lane].end());
    for (std::uint32_t slot = 0; slot < run.positions.size(); ++slot) {
      if (slot % tokens_per_block == 0) {
        run.offsets.push_back(taken[next].offset());
        run.pages.push_back(std::move(taken[next++]));
      }
      const std::uint32_t p = run.positions[slot];
      const std::byte* from;
      std::uint32_t from_slot = p;
      if (p >= old_end) {
        from = t.refs[p / tokens_per_block].bytes() + lane * page_bytes;
      } else {
        const LaneRun& old = t.lanes[lane];
        from_slot = static_cast<std::uint32_t>(std::ranges::lower_bound(old.positions, p) -
                                               old.positions.begin());
        from = old.pages[from_slot / tokens_per_block].bytes();
      }
      g.format->copy_slot(shape, from, from_slot % tokens_per_block, run.pages.back().bytes(),
                          slot % tokens_per_block);
    }
  }
  taken.clear();
  t.lanes = std::move(lanes);
  for (; t.first < end / tokens_per_block; ++t.first) t.refs[t.first] = {};
  return {};
}

Status KvCache::compact(Sequence& s, std::uint32_t group, std::uint32_t end,
                        std::span<const std::span<const std::uint32_t>> keep) {
  poll();
  return core_->compact(*s.state_, group, end, keep);
}

LaneView KvCache::lane(const Sequence& s, std::uint32_t group, std::uint32_t lane) const {
  core_->refresh_offsets(*s.state_);
  const BlockTable& t = s.state_->tables[group];
  if (t.lanes.empty()) return {nullptr, nullptr, 0};
  const LaneRun& run = t.lanes[lane];
  return {run.offsets.data(), run.positions.data(),
          static_cast<std::uint32_t>(run.positions.size())};
}

std::uint32_t KvCache::ragged_until(const Sequence& s, std::uint32_t group) const {
  const BlockTable& t = s.state_->tables[group];
  return t.lanes.empty() ? 0 : t.first * s.state_->tokens_per_block();
}

void KvCache::shrink_lane(Sequence& s, std::uint32_t group, std::uint32_t lane,
                          std::uint32_t slots) {
  CHECK(s.state_->steps == 0);
  core_->tick();
  LaneRun& run = s.state_->tables[group].lanes[lane];
  CHECK(slots <= run.positions.size());
  const std::uint32_t tokens_per_block = s.state_->tokens_per_block();
  run.positions.resize(slots);
  run.pages.resize((slots + tokens_per_block - 1) / tokens_per_block);
  run.offsets.resize(run.pages.size());
}

}  // namespace quire
