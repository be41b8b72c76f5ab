// Ragged retention: lanes that keep different tokens, each in pages of its own.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kv/core.h"

namespace quire {

namespace {

// Where the slots of one page of a lane come from.
struct PageSource {
  const BlockRef* shared = nullptr;  // a page of the lane as it is
  const std::byte* whole = nullptr;  // a block's page as it is; else slot by slot
};

PageSource source_of(const BlockTable& t, std::size_t lane, std::size_t page_bytes,
                     std::span<const std::uint32_t> positions, std::uint32_t tokens_per_block) {
  const std::uint32_t first = positions[0], block = first / tokens_per_block;
  if (positions.size() < tokens_per_block) return {};
  if (block >= t.first) {
    const bool all =
        first % tokens_per_block == 0 && positions.back() - first + 1 == tokens_per_block;
    return {nullptr, all ? t.refs[block].bytes() + lane * page_bytes : nullptr};
  }
  const LaneRun& old = t.lanes[lane];
  const auto slot = static_cast<std::size_t>(std::ranges::lower_bound(old.positions, first) -
                                             old.positions.begin());
  const bool same = slot % tokens_per_block == 0 &&
                    old.positions.size() - slot >= positions.size() &&
                    std::equal(positions.begin(), positions.end(), old.positions.begin() + slot);
  return {same ? &old.pages[slot / tokens_per_block] : nullptr, nullptr};
}

}  // namespace

// An error if the lanes cannot keep these slots.
Status CacheCore::check_keep(const SequenceState& s, std::uint32_t group, std::uint32_t end,
                             std::span<const std::span<const std::uint32_t>> keep) const {
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  const Geometry& geometry = s.layout->geometry;
  const LayerGroup& g = geometry.groups[group];
  if (!(s.layout->chain >> group & 1))
    return Error{Code::unsupported, fmt::format("layer group {} has no lanes to compact", group)};
  if (!arena.memory().on_host())
    return Error{Code::unsupported, "a cache on a GPU is not compacted yet; use --device cpu"};
  if (g.key_calibration != nullptr)  // a lane's slots do not tell the positions to rotate keys to
    return Error{Code::unsupported, fmt::format("keys in {} are stored before RoPE, so this format "
                                                "cannot drop tokens",
                                                g.format->keys->name)};
  if (keep.size() != g.lanes() || end % tokens_per_block != 0 || end > s.length)
    return Error{
        Code::invalid,
        fmt::format("compacting {} tokens of {} in {} lanes: whole blocks and {} lanes wanted", end,
                    s.length, keep.size(), g.lanes())};
  const BlockTable& t = s.tables[group];
  const std::uint32_t old_end = t.first * tokens_per_block;
  if (end < old_end)
    return Error{Code::invalid, fmt::format("tokens before {} are in lanes already", old_end)};
  // Tokens that are read as rows must not be in lanes too.
  std::uint32_t first_encoded = 0;
  if (g.sealed()) {
    const LayerGroup& rows = geometry.groups[geometry.row_place(g.layers[0]).group];
    first_encoded = rows.sink_blocks * tokens_per_block;
    const std::uint32_t last = geometry.first_block(rows, s.length) * tokens_per_block;
    if (end > last)
      return Error{Code::invalid,
                   fmt::format("tokens from {} on are kept exact; compact up to there", last)};
  }
  const bool stand_alone = g.format->slots_stand_alone(geometry.page_shape(g));
  for (std::size_t lane = 0; lane < keep.size(); ++lane) {
    std::span<const std::uint32_t> old;  // what is left of the lane's own tokens
    if (!t.lanes.empty()) old = t.lanes[lane].positions;
    for (std::size_t i = 0; i < keep[lane].size(); ++i) {
      const std::uint32_t p = keep[lane][i];
      while (!old.empty() && old[0] < p) old = old.subspan(1);
      const bool there = p >= old_end ? p >= first_encoded : !old.empty() && old[0] == p;
      if (p >= end || (i > 0 && keep[lane][i - 1] >= p) || !there)
        return Error{Code::invalid, fmt::format("lane {} cannot keep token {}", lane, p)};
    }
    for (std::size_t i = 0; !stand_alone && i < keep[lane].size(); i += tokens_per_block) {
      const PageSource from = source_of(
          t, lane, 0,
          keep[lane].subspan(i, std::min<std::size_t>(tokens_per_block, keep[lane].size() - i)),
          tokens_per_block);
      if (from.shared == nullptr && from.whole == nullptr)
        return Error{Code::unsupported,
                     fmt::format("format {} keeps or drops whole blocks, not single tokens; "
                                 "hadamard-int4 keeps any",
                                 g.format->name)};
    }
  }
  return {};
}

Status CacheCore::compact(SequenceState& s, std::uint32_t group, std::uint32_t end,
                          std::span<const std::span<const std::uint32_t>> keep) {
  CHECK(s.phase == Phase::running && s.steps == 0);
  TRY_STATUS(check_keep(s, group, end, keep));
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  const Geometry& geometry = s.layout->geometry;
  const LayerGroup& g = geometry.groups[group];
  const std::size_t page_bytes = geometry.page_bytes(g);
  const PageShape shape = geometry.page_shape(g);
  BlockTable& t = s.tables[group];
  const auto each_page = [&](auto f) {
    for (std::size_t lane = 0; lane < keep.size(); ++lane)
      for (std::size_t i = 0; i < keep[lane].size(); i += tokens_per_block) {
        const auto positions =
            keep[lane].subspan(i, std::min<std::size_t>(tokens_per_block, keep[lane].size() - i));
        f(lane, positions, source_of(t, lane, page_bytes, positions, tokens_per_block));
      }
  };

  taken.clear();
  const SizeClass page_class = s.layout->groups[group].page_class;
  std::fill(needed.begin(), needed.end(), 0);
  std::uint32_t& pages = needed[static_cast<std::size_t>(page_class)];
  each_page([&](std::size_t, auto, const PageSource& from) { pages += from.shared == nullptr; });
  for (std::uint32_t i = 0; i < pages; ++i) {
    taken.push_back(take(page_class, s));
    if (!taken.back().empty()) continue;
    taken.clear();
    return no_room();
  }

  // Nothing fails from here on. Blocks that are full and pure are published before they are
  // released.
  publish(s);
  s.pure_until =
      std::min(s.pure_until,
               s.published * tokens_per_block >= end ? s.length : s.published * tokens_per_block);
  std::size_t next = 0;
  std::vector<LaneRun> lanes(keep.size());
  for (std::size_t lane = 0; lane < keep.size(); ++lane)
    lanes[lane].positions.assign(keep[lane].begin(), keep[lane].end());
  each_page(
      [&](std::size_t lane, std::span<const std::uint32_t> positions, const PageSource& from) {
        LaneRun& run = lanes[lane];
        run.pages.push_back(from.shared ? from.shared->share() : std::move(taken[next++]));
        run.offsets.push_back(run.pages.back().offset());
        std::byte* const to = run.pages.back().bytes();
        if (from.shared != nullptr) return;
        if (from.whole != nullptr) {
          std::memcpy(to, from.whole, page_bytes);
          return;
        }
        if (positions.size() < tokens_per_block)
          std::memset(to, 0, page_bytes);  // finite, all of it
        for (std::uint32_t slot = 0; slot < positions.size(); ++slot) {
          const std::uint32_t p = positions[slot];
          std::uint32_t from_slot = p;
          const std::byte* source;
          if (p / tokens_per_block >= t.first) {
            source = t.refs[p / tokens_per_block].bytes() + lane * page_bytes;
          } else {
            const LaneRun& old = t.lanes[lane];
            from_slot = static_cast<std::uint32_t>(std::ranges::lower_bound(old.positions, p) -
                                                   old.positions.begin());
            source = old.pages[from_slot / tokens_per_block].bytes();
          }
          g.format->copy_slot(shape, source, from_slot % tokens_per_block, to, slot);
        }
      });
  taken.clear();
  t.set_lanes(std::move(lanes));
  for (; t.first < end / tokens_per_block; ++t.first) t.refs[t.first] = {};
  return {};
}

Status CacheCore::own_lane(SequenceState& s, std::uint32_t group, std::uint32_t lane) {
  BlockTable& t = s.tables[group];
  LaneRun& run = t.lanes[lane];
  const SizeClass page_class = s.layout->groups[group].page_class;
  taken.clear();
  std::fill(needed.begin(), needed.end(), 0);
  for (const BlockRef& page : run.pages) {
    if (page.unique()) continue;
    ++needed[static_cast<std::size_t>(page_class)];
    taken.push_back(take(page_class, s));
    if (!taken.back().empty()) continue;
    taken.clear();
    return no_room();
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < run.pages.size(); ++i) {
    if (run.pages[i].unique()) continue;
    pool.copy(taken[next].id(), run.pages[i].id());
    run.pages[i] = std::move(taken[next++]);
    run.offsets[i] = run.pages[i].offset();
  }
  taken.clear();
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

KvSequenceView KvCache::view(const Sequence& s, std::uint32_t group) const {
  core_->refresh_offsets(*s.state_);
  return s.state_->tables[group].view(s.state_->tokens_per_block(), 0, 0, s.state_->length);
}

Status KvCache::own_lane(Sequence& s, std::uint32_t group, std::uint32_t lane) {
  CHECK(s.state_->steps == 0);
  poll();
  return core_->own_lane(*s.state_, group, lane);
}

void KvCache::shrink_lane(Sequence& s, std::uint32_t group, std::uint32_t lane,
                          std::uint32_t slots) {
  CHECK(s.state_->steps == 0);
  core_->tick();
  BlockTable& t = s.state_->tables[group];
  LaneRun& run = t.lanes[lane];
  CHECK(slots <= run.positions.size());
  const std::uint32_t tokens_per_block = s.state_->tokens_per_block();
  run.positions.resize(slots);
  run.pages.resize((slots + tokens_per_block - 1) / tokens_per_block);
  run.offsets.resize(run.pages.size());
  t.set_lanes(std::move(t.lanes));
}

}  // namespace quire
