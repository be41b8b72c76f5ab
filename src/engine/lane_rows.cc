#include "engine/lane_rows.h"

#include <algorithm>

#include "base/check.h"

namespace quire {
namespace {

// One page's rows, out of the codec's basis, appended as far as they count.
class PageReader {
 public:
  PageReader(const Geometry& geometry, const LaneParts& parts, LaneRows& out)
      : geometry_(geometry), parts_(parts), out_(out) {}

  void add(const LayerGroup& g, const std::byte* page, std::uint32_t slots) {
    if (parts_.keys) add_side(*g.format->keys, Side::keys, g.key_dim, page, slots, out_.keys);
    if (parts_.values)
      add_side(*g.format->values, Side::values, g.value_dim, page + geometry_.key_bytes(g), slots,
               out_.values);
  }

 private:
  void add_side(const Codec& codec, Side side, std::uint32_t dim, const std::byte* page,
                std::uint32_t slots, std::vector<float>& to) {
    rows_.resize(std::size_t{geometry_.tokens_per_block} * dim);
    codec.decode(codec, side, {geometry_.tokens_per_block, dim}, page, rows_.data());
    for (std::uint32_t slot = 0; slot < slots; ++slot)
      from_basis(codec.basis(side), dim, rows_.data() + std::size_t{slot} * dim);
    to.insert(to.end(), rows_.begin(), rows_.begin() + std::size_t{slots} * dim);
  }

  const Geometry& geometry_;
  const LaneParts parts_;
  LaneRows& out_;
  std::vector<float> rows_;
};

struct Place {
  const LayerGroup* group;
  std::uint32_t number, lane;
};

Place place_of(const Geometry& g, const LayerPlace& place, std::uint32_t head) {
  const LayerGroup& group = g.groups[place.group];
  return {&group, place.group, place.index * group.kv_heads + head};
}

// Tokens [begin, end) of blocks, and whether what a compaction left comes before them.
struct Span {
  std::uint32_t begin, end;
  bool with_kept;
};

Span span_of(const Runtime& runtime, const Sequence& s, const Place& at, const LaneRange& range) {
  const std::uint32_t per_block = runtime.cache().geometry(s.root()).tokens_per_block;
  const std::uint32_t ragged = runtime.cache().ragged_until(s, at.number);
  return {std::max(ragged, range.begin / per_block * per_block), std::min(range.end, s.length()),
          range.begin < ragged};
}

}  // namespace

std::vector<std::uint32_t> lane_tokens(const Runtime& runtime, const Sequence& s,
                                       std::uint32_t layer, std::uint32_t head, LaneRange range) {
  const Geometry& geometry = runtime.cache().geometry(s.root());
  const Place at = place_of(geometry, geometry.places[layer], head);
  const LaneView kept = runtime.cache().lane(s, at.number, at.lane);
  const Span span = span_of(runtime, s, at, range);
  std::vector<std::uint32_t> tokens;
  if (span.with_kept) tokens.assign(kept.positions, kept.positions + kept.slots);
  for (std::uint32_t t = span.begin; t < span.end; ++t) tokens.push_back(t);
  return tokens;
}

std::uint32_t lane_slots(const Runtime& runtime, const Sequence& s, std::uint32_t layer,
                         std::uint32_t head) {
  const Geometry& geometry = runtime.cache().geometry(s.root());
  const Place at = place_of(geometry, geometry.places[layer], head);
  const Span span = span_of(runtime, s, at, {});
  return (span.with_kept ? runtime.cache().lane(s, at.number, at.lane).slots : 0) + span.end -
         span.begin;
}

LaneRows lane_rows(const Runtime& runtime, const Sequence& s, std::uint32_t layer,
                   std::uint32_t head, const LaneParts& parts, LaneRange range) {
  const KvCache& cache = runtime.cache();
  const Geometry& geometry = cache.geometry(s.root());
  const std::uint32_t per_block = geometry.tokens_per_block;
  const Place at = place_of(geometry, geometry.places[layer], head);
  const Place open = place_of(geometry, geometry.row_place(layer), head);
  LaneRows out;
  out.tokens = lane_tokens(runtime, s, layer, head, range);
  const Span span = span_of(runtime, s, at, range);
  out.keys.reserve(parts.keys ? out.tokens.size() * at.group->key_dim : 0);
  out.values.reserve(parts.values ? out.tokens.size() * at.group->value_dim : 0);
  PageReader reader(geometry, parts, out);

  const LaneView kept = cache.lane(s, at.number, at.lane);
  for (std::uint32_t slot = 0; span.with_kept && slot < kept.slots; slot += per_block)
    reader.add(*at.group, arena_at(cache.arena(), kept.pages[slot / per_block]),
               std::min(per_block, kept.slots - slot));
  const ArenaOffset* const blocks = s.table(at.number);
  const ArenaOffset* const rows = s.table(open.number);
  const auto add = [&](const Place& from, const ArenaOffset* table, std::uint32_t t) {
    reader.add(*from.group,
               arena_at(cache.arena(), table[t / per_block]) +
                   from.lane * geometry.page_bytes(*from.group),
               std::min(per_block, span.end - t));
  };
  for (std::uint32_t t = span.begin; t < span.end; t += per_block) {
    if (at.number == open.number || t + per_block <= s.length())
      add(at, blocks, t);
    else
      add(open, rows, t);
  }
  return out;
}

void write_lane(Runtime& runtime, Sequence& s, std::uint32_t layer, std::uint32_t head,
                const std::vector<float>& keys, const std::vector<float>& values) {
  KvCache& cache = runtime.cache();
  const Geometry& geometry = cache.geometry(s.root());
  const std::uint32_t per_block = geometry.tokens_per_block;
  const Place at = place_of(geometry, geometry.places[layer], head);
  const LaneView kept = cache.lane(s, at.number, at.lane);
  const LayerGroup& g = *at.group;
  CHECK(keys.size() == std::size_t{kept.slots} * g.key_dim);
  std::vector<float> key_rows(std::size_t{per_block} * g.key_dim);
  std::vector<float> value_rows(std::size_t{per_block} * g.value_dim);
  const auto take = [](const std::vector<float>& from, std::size_t first, std::vector<float>& to) {
    std::ranges::fill(to, 0.0f);
    const std::size_t count = std::min(to.size(), from.size() - first);
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(first), count, to.begin());
  };
  for (std::uint32_t slot = 0; slot < kept.slots; slot += per_block) {
    take(keys, std::size_t{slot} * g.key_dim, key_rows);
    take(values, std::size_t{slot} * g.value_dim, value_rows);
    g.format->encode(geometry.page_shape(g), key_rows.data(), value_rows.data(),
                     arena_at(cache.arena(), kept.pages[slot / per_block]));
  }
}

}  // namespace quire
