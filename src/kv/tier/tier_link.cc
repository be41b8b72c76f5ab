#include "kv/tier/tier_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kv/planted.h"
#include "kv/tier/block_segments.h"

namespace quire {
namespace {

constexpr std::uint64_t kBatchBytes = 4 << 20;     // sent before a step is over
constexpr std::uint64_t kSegmentBytes = 64 << 10;  // at least, where layers are smaller
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
  TRY(link->tier_, opener(link->mailbox_));
  link->courier_ = std::make_unique<Courier>(options.way);
  return link;
}

// The tier answers all that is under way; whoever waits hears of it here.
TierLink::~TierLink() {
  courier_.reset();
  tier_.reset();
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

bool TierLink::wanted(Offer why, const OfferedBlock& block) const {
  if (why == Offer::asked) return true;
  switch (options_.write) {
    case TierWrite::automatic:
      return why == Offer::sealed ? queued_bytes_ < options_.queue_bytes / 2
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
  if (!wanted(why, block)) return false;
  const std::uint64_t size = block.bytes.size();
  if (queued_bytes_ + size > options_.queue_bytes) {
    ++refused_;
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
                    .tenant = std::string(traits().shared ? block.tenant : std::string_view())});
  queued_bytes_ += size;
  batch_bytes_ += size;
  if (batch_bytes_ >= kBatchBytes) send();
  return true;
}

void TierLink::send() {
  if (batch_.empty()) return;
  batch_bytes_ = 0;
  auto batch = std::make_shared<const Batch>(std::exchange(batch_, {}));
  const Nanoseconds since = clock_.now();
  courier_->run([this, batch, since] {
    std::vector<RecordWrite> writes;
    for (const Parcel& p : *batch) {
      auto of = std::make_shared<const RecordIdentity>(
          identity(secret_, p.key, p.layout, p.tokens, p.group));
      writes.push_back({.of = std::move(of),
                        .segments = *p.segments,
                        .bytes = cut_block<const std::byte>(
                            *p.segments, std::span<const std::byte>(p.bytes.get(), p.size)),
                        .recompute_us = p.recompute_us,
                        .tenant = p.tenant});
    }
    // The batch, and so its bytes, lives until this is called or dropped.
    tier_->write(writes, [this, batch, since](std::span<const TierOutcome> ends) {
      written(batch, since, ends);
    });
  });
}

void TierLink::written(const std::shared_ptr<const Batch>& batch, Nanoseconds since,
                       std::span<const TierOutcome> ends) {
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const Parcel& p = (*batch)[i];
    queued_bytes_ -= p.size;
    if (ends[i] == TierOutcome::ok) {
      ++down_.blocks;
      down_.bytes += p.size;
    } else if (ends[i] != TierOutcome::already && ends[i] != TierOutcome::full) {
      lost_.emplace_back(p.key, p.group);
    }
  }
  down_.seconds.add(static_cast<double>(clock_.now() - since) * 1e-9);
}

void TierLink::read(std::span<const SegmentRead> reads, std::uint32_t blocks, ReadDone done) {
  ++reads_in_flight_;
  std::uint64_t bytes = 0;
  for (const SegmentRead& r : reads) bytes += r.to.size();
  tier_->read(reads, [this, since = clock_.now(), bytes, blocks, done = std::move(done)](
                         std::span<const ReadEnd> ends, bool last) {
    if (last) {
      --reads_in_flight_;
      up_.blocks += blocks;
      up_.bytes += bytes;
      up_.seconds.add(static_cast<double>(clock_.now() - since) * 1e-9);
    }
    done(ends, last);
  });
}

bool TierLink::drain(const std::function<void(const BlockKey&, std::uint32_t)>& lost) {
  const bool any = !mailbox_.empty();
  if (any) mailbox_.drain();
  for (const auto& [key, group] : std::exchange(lost_, {})) lost(key, group);
  return any;
}

void TierLink::clear() {
  send();
  courier_->run([this] { tier_->clear(); });
}

void TierLink::erase(std::vector<BlockKey> keys) {
  send();
  courier_->run([this, keys = std::move(keys)] {
    std::vector<RecordName> names;
    for (const BlockKey& key : keys)
      for (std::uint32_t g = 0; g < kGroupsMax; ++g)
        names.push_back(RecordName::of(stored_key(secret_, key, g)));
    tier_->erase(names);
  });
}

bool TierLink::flush(Nanoseconds limit) {
  send();
  auto durable = std::make_shared<bool>(false);
  courier_->run([this, durable] { tier_->flush([durable] { *durable = true; }); });
  const Nanoseconds end = clock_.now() + limit;
  while (!*durable && clock_.now() < end) {
    if (mailbox_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    mailbox_.drain();
  }
  return *durable;
}

TierLinkStats TierLink::stats() const {
  TierLinkStats s;
  s.there = true;
  s.name = traits().name;
  s.capacity_bytes = traits().capacity_bytes;
  s.tier = tier_->stats();
  s.cost = tier_->cost();
  s.down = down_;
  s.up = up_;
  s.write_queue_bytes = queued_bytes_;
  s.refused_blocks = refused_;
  s.failed_loads = failed_loads_;
  return s;
}

}  // namespace quire
