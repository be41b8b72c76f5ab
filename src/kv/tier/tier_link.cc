#include "kv/tier/tier_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kv/planted.h"
#include "kv/tier/block_segments.h"

namespace quire {
namespace {

constexpr std::uint64_t kBatchBytes = 4 << 20;     // sent before a step is over
constexpr std::uint64_t kSegmentBytes = 16 << 10;  // at least, where layers are smaller
constexpr std::size_t kLayoutsKept = 64;
constexpr double kTransferBuckets[] = {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, .01, .02,
                                       .05,  .1,   .2,   .5,   1,    2,    5,   10};

struct WriteName {
  TierWrite write;
  std::string_view name;
};
constexpr WriteName kWriteNames[] = {{TierWrite::automatic, "auto"},
                                     {TierWrite::always, "always"},
                                     {TierWrite::reused, "reused"},
                                     {TierWrite::evicted, "evicted"},
                                     {TierWrite::never, "never"}};

}  // namespace

Result<TierWrite> find_tier_write(std::string_view name) {
  for (const WriteName& w : kWriteNames)
    if (w.name == name) return w.write;
  return Error{Code::invalid,
               fmt::format("'{}' is not auto, always, reused, evicted or never", name)};
}

TierTraffic::TierTraffic() : seconds(kTransferBuckets) {}

TierLink::TierLink(const TierLinkOptions& options)
    : options_(options), clock_(options.clock ? *options.clock : steady_) {}

Result<std::unique_ptr<TierLink>> TierLink::open(const TierLinkOptions& options,
                                                 const Opener& opener) {
  std::unique_ptr<TierLink> link(new TierLink(options));
  TRY_STATUS(link->add(opener));
  link->courier_ = std::make_unique<Courier>(options.way);
  return link;
}

Status TierLink::add(const Opener& opener) {
  CHECK(places_.size() < kNowhere);
  TRY(std::unique_ptr<Tier> tier, opener(mailbox_));
  shared_ |= tier->traits().shared;
  places_.push_back({.tier = std::move(tier)});
  return {};
}

// The tiers answer all that is under way; whoever waits hears of it here.
TierLink::~TierLink() {
  courier_.reset();
  for (Place& p : places_) p.tier.reset();
  mailbox_.drain();
}

RecordIdentity TierLink::identity(const KeySecret& secret, const BlockKey& key,
                                  const Digest& layout, std::span<const TokenId> tokens,
                                  std::uint32_t group) {
  const BlockKey known =
      planted(Bug::name_without_prefix) ? block_key(secret, {}, tokens, 0, {}) : key;
  return {.name = RecordName::of(stored_key(secret, known, group)),
          .key = known,
          .layout = layout,
          .tokens = {tokens.begin(), tokens.end()}};
}

std::vector<RecordSegment> TierLink::segments(const Geometry& geometry, std::uint32_t group) {
  const std::vector<RecordSegment> by_layer = block_segments(geometry, group);
  const std::uint64_t bytes = std::max<std::uint64_t>(by_layer[0].bytes / by_layer[0].layers, 1);
  return block_segments(geometry, group,
                        static_cast<std::uint32_t>((kSegmentBytes + bytes - 1) / bytes));
}

std::shared_ptr<const std::vector<RecordSegment>> TierLink::segments_of(const CacheLayout& layout,
                                                                        std::uint32_t group) {
  if (segments_.size() > kLayoutsKept) segments_.clear();
  auto& known = segments_[{layout.serial, group}];
  if (!known)
    known = std::make_shared<const std::vector<RecordSegment>>(segments(layout.geometry, group));
  return known;
}

// Nothing is copied for tiers that are all closed, unless somebody asks.
bool TierLink::wanted(Offer why, const OfferedBlock& block) const {
  if (why == Offer::asked) return true;
  if (std::ranges::none_of(places_, &Place::open)) return false;
  switch (options_.write) {
    case TierWrite::automatic:
      return why == Offer::sealed ? write_queue_bytes() < options_.queue_bytes / 2
                                  : why == Offer::hit || block.hits > 0;
    case TierWrite::always:
      return true;
    case TierWrite::reused:
      return why == Offer::hit || (why == Offer::leaving && block.hits > 0);
    case TierWrite::evicted:
      return why == Offer::leaving;
    case TierWrite::never:
      return false;
  }
  return false;
}

bool TierLink::offer(Offer why, const OfferedBlock& block) {
  return wanted(why, block) && take(block, {});
}

bool TierLink::keep(const OfferedBlock& block, Kept kept) { return take(block, std::move(kept)); }

bool TierLink::take(const OfferedBlock& block, Kept kept) {
  const std::uint64_t size = block.bytes.size();
  if (write_queue_bytes() + size > options_.queue_bytes) {
    ++places_[0].refused;
    return false;
  }
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  std::memcpy(bytes.get(), block.bytes.data(), size);
  batch_.push_back({.key = block.key,
                    .layout = block.layout.digest,
                    .group = block.group,
                    .tokens = {block.tokens.begin(), block.tokens.end()},
                    .segments = segments_of(block.layout, block.group),
                    .bytes = std::move(bytes),
                    .size = size,
                    .recompute_us = static_cast<std::uint32_t>(
                        std::clamp<Nanoseconds>(block.recompute_ns / 1000, 0, UINT32_MAX)),
                    .tenant = std::string(shared_ ? block.tenant : std::string_view()),
                    .kept = std::move(kept)});
  batch_bytes_ += size;
  if (batch_bytes_ >= kBatchBytes) send();
  return true;
}

void TierLink::send() {
  if (batch_.empty()) return;
  auto batch = std::make_shared<Batch>();
  batch->parcels = std::exchange(batch_, {});
  batch->bytes = std::exchange(batch_bytes_, 0);
  batch->since = clock_.now();
  batch->kept.resize(batch->parcels.size());
  batch->at.assign(batch->parcels.size(), kNowhere);
  for (TierPlace i = 0; i < tiers(); ++i) {
    Place& place = places_[i];
    // The first one has been asked whether it has room.
    if (i > 0 && (!place.open || place.queued_bytes + batch->bytes > options_.queue_bytes)) {
      place.refused += batch->parcels.size();
      continue;
    }
    place.queued_bytes += batch->bytes;
    batch->to.push_back(i);
  }
  courier_->run([this, batch] {
    std::vector<RecordWrite> writes;
    for (const Parcel& p : batch->parcels) {
      auto of = std::make_shared<const RecordIdentity>(
          identity(secret_, p.key, p.layout, p.tokens, p.group));
      writes.push_back({.of = std::move(of),
                        .segments = *p.segments,
                        .bytes = cut_block<const std::byte>(
                            *p.segments, std::span<const std::byte>(p.bytes.get(), p.size)),
                        .recompute_us = p.recompute_us,
                        .tenant = p.tenant});
    }
    // The batch, and so its bytes, lives until the last of these is called or dropped.
    for (const TierPlace place : batch->to)
      tier(place).write(writes, [this, batch, place](std::span<const TierOutcome> ends) {
        written(*batch, place, ends);
      });
  });
}

void TierLink::written(Batch& batch, TierPlace place, std::span<const TierOutcome> ends) {
  Place& at = places_[place];
  at.queued_bytes -= batch.bytes;
  at.down.seconds.add(static_cast<double>(clock_.now() - batch.since) * 1e-9);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    // One that is full would be so the next time, too.
    batch.kept[i] |= ends[i] == TierOutcome::ok || ends[i] == TierOutcome::already ||
                     ends[i] == TierOutcome::full;
    if (ends[i] == TierOutcome::ok || ends[i] == TierOutcome::already)
      batch.at[i] = std::min(batch.at[i], place);
    if (ends[i] != TierOutcome::ok) continue;
    ++at.down.blocks;
    at.down.bytes += batch.parcels[i].size;
  }
  if (++batch.answers < batch.to.size()) return;
  for (std::size_t i = 0; i < batch.parcels.size(); ++i) {
    if (batch.parcels[i].kept)
      batch.parcels[i].kept(batch.at[i]);
    else if (!batch.kept[i])
      lost_.emplace_back(batch.parcels[i].key, batch.parcels[i].group);
  }
}

bool TierLink::writes() const {
  return !batch_.empty() ||
         std::ranges::any_of(places_, [](const Place& p) { return p.queued_bytes > 0; });
}

void TierLink::read_at(TierPlace place, std::span<const SegmentRead> reads, ReadDone done) {
  ++reads_in_flight_;
  std::uint64_t bytes = 0, blocks = 0;
  for (const SegmentRead& r : reads) {
    bytes += r.to.size();
    blocks += r.segment == 0;
  }
  tier(place).read(reads, [this, place, since = clock_.now(), bytes, blocks,
                           done = std::move(done)](std::span<const ReadEnd> ends, bool last) {
    if (last) {
      TierTraffic& up = places_[place].up;
      --reads_in_flight_;
      up.blocks += blocks;
      up.bytes += bytes;
      up.seconds.add(static_cast<double>(clock_.now() - since) * 1e-9);
    }
    done(ends, last);
  });
}

// Reads of several places become a batch for each. The caller hears of one batch.
void TierLink::read(std::span<const SegmentRead> reads, const ReadDone& done) {
  struct Part {
    std::vector<SegmentRead> reads;
    std::vector<std::uint32_t> which;  // in the caller's batch
  };
  std::map<TierPlace, Part> parts;
  for (std::uint32_t i = 0; i < reads.size(); ++i) {
    Part& part = parts[reads[i].place];
    part.reads.push_back(reads[i]);
    part.which.push_back(i);
  }
  if (parts.size() == 1) return read_at(parts.begin()->first, reads, done);
  const auto left = std::make_shared<std::size_t>(parts.size());
  for (auto& [place, part] : parts)
    read_at(place, part.reads,
            [left, done, which = std::move(part.which)](std::span<const ReadEnd> ends, bool last) {
              std::vector<ReadEnd> named;
              for (const ReadEnd& e : ends) named.push_back({which[e.read], e.outcome});
              *left -= last;
              done(named, *left == 0);
            });
}

bool TierLink::drain(const std::function<void(const BlockKey&, std::uint32_t)>& lost) {
  for (Place& p : places_) p.open = p.tier->stats().open != 0;
  const bool any = !mailbox_.empty();
  if (any) mailbox_.drain();
  for (const auto& [key, group] : std::exchange(lost_, {})) lost(key, group);
  return any;
}

void TierLink::clear() {
  send();
  courier_->run([this] {
    for (Place& p : places_) p.tier->clear();
  });
}

void TierLink::erase(std::vector<BlockKey> keys) {
  send();
  courier_->run([this, keys = std::move(keys)] {
    std::vector<RecordName> names;
    for (const BlockKey& key : keys)
      for (std::uint32_t g = 0; g < kGroupsMax; ++g)
        names.push_back(RecordName::of(stored_key(secret_, key, g)));
    for (Place& p : places_) p.tier->erase(names);
  });
}

bool TierLink::flush(Nanoseconds limit) {
  send();
  auto left = std::make_shared<std::size_t>(places_.size());
  courier_->run([this, left] {
    for (Place& p : places_) p.tier->flush([left] { --*left; });
  });
  const Nanoseconds end = clock_.now() + limit;
  while (*left > 0 && clock_.now() < end) {
    if (mailbox_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    mailbox_.drain();
  }
  return *left == 0;
}

TierLinkStats TierLink::stats(TierPlace place) const {
  const Place& p = places_[place];
  TierLinkStats s;
  s.name = p.tier->traits().name;
  s.capacity_bytes = p.tier->traits().capacity_bytes;
  s.tier = p.tier->stats();
  s.cost = p.tier->cost();
  s.down = p.down;
  s.up = p.up;
  s.write_queue_bytes = p.queued_bytes + (place == 0 ? batch_bytes_ : 0);
  s.refused_blocks = p.refused;
  s.failed_loads = p.failed_loads;
  return s;
}

}  // namespace quire
