#include "engine/cold_reader.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/attend.h"

namespace quire {
namespace {

constexpr std::uint64_t kReadBytes = 1 << 20;     // of a batch: a tier serves it as a whole
constexpr Nanoseconds kPatience = 2'000'000'000;  // without progress

}  // namespace

struct ColdReader::Ring {
  enum class State : std::uint8_t { free, coming, there, failed };
  struct Slot {
    std::size_t extent;
    std::uint64_t at;  // within it
    State state = State::free;
    bool wanted = false;  // by an item of the queue
  };
  KvCache* cache;
  std::vector<Landing> extents = {};
  std::vector<Slot> slots = {};
  std::uint64_t in_flight = 0, ended = 0;  // reads

  void end(std::uint32_t slot, bool ok) {
    Slot& s = slots[slot];
    --in_flight;
    ++ended;
    s.state = !s.wanted ? State::free : ok ? State::there : State::failed;
  }
};

ColdReader::ColdReader(KvCache& cache, TierLink& link, const Clock& clock, const Geometry& geometry,
                       const SpillShape& shape, std::string tenant,
                       const std::deque<ColdSource>& sources)
    : cache_(cache),
      link_(link),
      clock_(clock),
      shape_(shape),
      slots_(ring_slots(geometry, shape.group)),
      tenant_(std::move(tenant)),
      sources_(sources),
      layers_(static_cast<std::uint32_t>(slots_.segment_of.size())) {}

ColdReader::~ColdReader() { let_go(); }

void ColdReader::let_go() {
  if (ring_ && ring_->in_flight > 0)  // its callbacks keep it
    for (Landing& extent : ring_->extents) cache_.leave_behind(extent);
  ring_.reset();
  queue_.clear();
  brought_ = 0;
}

std::uint64_t ColdReader::ring_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; ring_ && i < ring_->extents.size(); ++i)
    bytes += ring_->extents[i].bytes().size();
  return bytes;
}

// A table entry names a place before the slot: where the block would begin if the segment lay in it. The
// arena's first extent has nothing before it, so another one is taken instead.
bool ColdReader::lend(const Sequence& s) {
  if (ring_) return true;
  auto ring = std::make_shared<Ring>();
  ring->cache = &cache_;
  const std::uint64_t before = slots_.at.back() / kArenaUnit;
  std::optional<Landing> first;
  while (ring->extents.size() < shape_.ring_blocks) {
    std::optional<Landing> extent = cache_.lend(s, shape_.group);
    if (!extent) return false;
    if (static_cast<std::uint64_t>(extent->offset()) < before)
      first = std::move(extent);
    else
      ring->extents.push_back(std::move(*extent));
  }
  for (std::size_t e = 0; e < ring->extents.size(); ++e)
    for (std::uint32_t i = 0; i < slots_.per_block; ++i)
      ring->slots.push_back({.extent = e, .at = i * slots_.stride});
  ring_ = std::move(ring);
  restart(0, 0);
  return true;
}

// Blocks before the present end stay as they are, so what is there or on its way is still right.
void ColdReader::set_blocks(std::uint32_t blocks) {
  if (blocks < blocks_) restart(0, 0);
  blocks_ = blocks;
}

void ColdReader::restart(std::uint32_t layer, std::uint32_t block) {
  for (const Item& item : queue_) {
    Ring::Slot& slot = ring_->slots[item.slot];
    slot.wanted = false;
    if (slot.state != Ring::State::coming) slot.state = Ring::State::free;
  }
  queue_.clear();
  brought_ = 0;
  next_layer_ = layer;
  next_block_ = block;
}

void ColdReader::begin(std::uint32_t layers) {
  if (ring_ && (brought_ > 0 || next_layer_ != layers_)) restart(0, 0);  // the last one broke off
  next_layer_ = 0;
  layers_ = layers;
  looked_ = false;
  lost_.reset();
}

// Whether what was brought for the layer before serves this one, too.
bool ColdReader::kept_for(std::uint32_t layer) const {
  return layer > 0 && layer < layers_ && slots_.segment_of[layer] == slots_.segment_of[layer - 1] &&
         blocks_ <= ring_->slots.size();
}
bool ColdReader::next_is_kept() const {
  return kept_for(next_layer_) && !queue_.empty() && queue_.front().layer < next_layer_;
}

void ColdReader::ask() {
  auto free = ring_->slots.begin();
  for (;;) {
    std::vector<SegmentRead> reads;
    std::vector<std::uint32_t> into;
    std::uint64_t bytes = 0;
    while (bytes < kReadBytes) {
      if (next_block_ >= blocks_) {
        if (next_layer_ == layers_) break;
        next_block_ = 0;
        ++next_layer_;
      }
      if (blocks_ == 0 || next_is_kept()) break;
      free = std::find_if(free, ring_->slots.end(),
                          [](const Ring::Slot& s) { return s.state == Ring::State::free; });
      if (free == ring_->slots.end()) break;
      const std::uint32_t layer = next_layer_ == layers_ ? 0 : next_layer_;
      const std::uint32_t segment = slots_.segment_of[layer];
      const auto number = static_cast<std::uint32_t>(free - ring_->slots.begin());
      const ColdSource& source = sources_[next_block_];
      const std::span<std::byte> to = ring_->extents[free->extent].bytes().subspan(
          free->at + slots_.at[segment] % kArenaUnit, slots_.bytes[segment]);
      reads.push_back({source.of, segment, to, tenant_, source.place});
      into.push_back(number);
      *free = {free->extent, free->at, Ring::State::coming, true};
      queue_.push_back({layer, next_block_++, number});
      bytes += to.size();
    }
    if (reads.empty()) return;
    reads_.bytes += bytes;
    ring_->in_flight += reads.size();
    link_.read(reads, [ring = ring_, into = std::move(into)](std::span<const ReadEnd> ends, bool) {
      for (const ReadEnd& e : ends) ring->end(into[e.read], e.outcome == TierOutcome::ok);
    });
  }
}

ArenaOffset ColdReader::entry(const Item& item) const {
  const Ring::Slot& slot = ring_->slots[item.slot];
  const std::uint64_t segment_at = slots_.at[slots_.segment_of[item.layer]];
  return static_cast<ArenaOffset>(static_cast<std::uint64_t>(ring_->extents[slot.extent].offset()) +
                                  slot.at / kArenaUnit - segment_at / kArenaUnit);
}

// Whether what is asked for comes next.
bool ColdReader::wants(std::uint32_t layer, std::uint32_t block) const {
  return queue_.empty() ? next_layer_ == layer && next_block_ == block
                        : queue_.front().layer == layer && queue_.front().block == block;
}

ColdBlocks::Came ColdReader::bring(std::uint32_t layer, std::uint32_t first, std::uint32_t end,
                                   ArenaOffset* table) {
  CHECK(ring_ && brought_ == 0 && end <= blocks_ && end - first <= ring_->slots.size());
  if (!wants(layer, first)) restart(layer, first);
  ask();
  link_.drain([this](const BlockKey& key, std::uint32_t g) { cache_.not_below(key, g); });
  const std::uint32_t count = end - first;
  const auto here = std::min<std::size_t>(count, queue_.size());
  for (std::size_t i = 0; i < here; ++i)
    CHECK(queue_[i].layer == layer && queue_[i].block == first + i);
  bool all = here == count;  // slots that an earlier step gave up may still be written to
  std::uint64_t late = 0;
  for (std::size_t i = 0; i < here; ++i) {
    const Ring::Slot& slot = ring_->slots[queue_[i].slot];
    if (slot.state == Ring::State::failed) {
      lost_ = {queue_[i].block, false};
      return Came::never;
    }
    if (slot.state == Ring::State::there) continue;
    all = false;
    late += slots_.bytes[slots_.segment_of[layer]];
  }
  const Nanoseconds now = clock_.now();
  if (!std::exchange(looked_, true)) {
    std::uint64_t wanted = count * slots_.bytes[slots_.segment_of[layer]];
    if (kept_for(layer)) wanted = 0;  // it was counted before
    late += (count - here) * slots_.bytes[slots_.segment_of[layer]];
    reads_.hidden += wanted - std::min(wanted, late);
    progress_ = now;
  }
  if (ring_->ended != ended_) {
    ended_ = ring_->ended;
    progress_ = now;
  }
  if (!all) return now - progress_ < kPatience ? Came::later : stall(first);
  for (std::uint32_t i = 0; i < count; ++i) table[first + i] = entry(queue_[i]);
  brought_ = count;
  return Came::now;
}

// The tier may still write into the ring, so that another one is needed.
ColdBlocks::Came ColdReader::stall(std::uint32_t block) {
  lost_ = {block, true};
  ++reads_.stalls;
  let_go();
  return Came::never;
}

void ColdReader::release() {
  for (; brought_ > 0; --brought_) {
    Item item = queue_.front();
    queue_.pop_front();
    if (kept_for(item.layer + 1)) {
      ++item.layer;
      queue_.push_back(item);
      next_layer_ = item.layer;
      next_block_ = item.block + 1;
      continue;
    }
    ring_->slots[item.slot].state = Ring::State::free;
    ring_->slots[item.slot].wanted = false;
  }
  looked_ = false;
  ask();
}

}  // namespace quire
