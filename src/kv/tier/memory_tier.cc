#include "kv/tier/memory_tier.h"

#include <algorithm>
#include <cmath>

namespace quire {

void MemoryTier::later(std::uint64_t bytes, bool queued, std::function<void()> run) {
  const double transfer_ns = static_cast<double>(bytes) / options_.bytes_per_s * 1e9;
  busy_until_ = std::max(busy_until_, clock_.now()) + options_.first_byte_ns +
                static_cast<Nanoseconds>(std::llround(transfer_ns));
  if (queued) queued_bytes_ += bytes;
  events_.push_back({busy_until_, queued ? bytes : 0, std::move(run)});
}

void MemoryTier::poll() {
  while (!events_.empty() && events_.front().due <= clock_.now()) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    queued_bytes_ -= event.bytes;
    event.run();
  }
}

Nanoseconds MemoryTier::next_due() const {
  return events_.empty() ? std::numeric_limits<Nanoseconds>::max() : events_.front().due;
}

void MemoryTier::clear() {
  records_.clear();
  order_.clear();
  counts_.stored_bytes = 0;
}

void MemoryTier::drop(const RecordName& name) {
  const auto it = records_.find(name);
  if (it == records_.end()) return;
  counts_.stored_bytes -= it->second.size();
  records_.erase(it);
  if (!order_.empty() && order_.front() == name)
    order_.pop_front();
  else
    std::erase(order_, name);
}

void MemoryTier::find(std::span<const RecordName> names, FindDone done) {
  later(0, false, [this, asked = std::vector(names.begin(), names.end()), done = std::move(done)] {
    std::vector<std::uint8_t> there;
    for (const RecordName& name : asked) there.push_back(!down_ && records_.contains(name));
    mailbox_.post([there = std::move(there), done] { done(there); });
  });
}

// Every segment ends by itself, at its own time.
void MemoryTier::read(std::span<const SegmentRead> reads, ReadDone done) {
  if (reads.empty()) later(0, false, [this, done] { mailbox_.post([done] { done({}, true); }); });
  for (std::uint32_t i = 0; i < reads.size(); ++i)
    later(reads[i].to.size(), true, [this, i, read = reads[i], done, last = i + 1 == reads.size()] {
      const ReadEnd end{i, read_now(read)};
      mailbox_.post([end, done, last] { done({&end, 1}, last); });
    });
}

TierOutcome MemoryTier::read_now(const SegmentRead& read) {
  const auto it = records_.find(read.of->name);
  if (down_ || random_.chance(options_.fail_chance)) {
    counts_.failed += 1;
    return TierOutcome::failed;
  }
  if (it == records_.end()) {
    counts_.absent += 1;
    return TierOutcome::absent;
  }
  std::vector<std::byte> bytes = it->second;
  if (random_.chance(options_.corrupt_chance))
    bytes[random_.below(bytes.size())] ^= static_cast<std::byte>(1u << random_.below(8));
  std::optional<Seal> seal;
  if (options_.secret) seal.emplace(*options_.secret, read.tenant);
  const auto view = read_record(bytes, seal ? &*seal : nullptr);
  const std::uint32_t s = read.segment;
  if (view.ok() && view.value().head.identity == *read.of &&
      s < view.value().head.segments.size() &&
      view.value().read_segment(
          s,
          std::span(bytes).subspan(view.value().segment_at[s], view.value().head.segments[s].bytes),
          read.to)) {
    counts_.read_segments += 1;
    counts_.read_bytes += read.to.size();
    return TierOutcome::ok;
  }
  counts_.corrupt += 1;
  drop(read.of->name);
  return TierOutcome::corrupt;
}

void MemoryTier::write(std::span<const RecordWrite> writes, WriteDone done) {
  std::uint64_t bytes = 0;
  for (const RecordWrite& w : writes)
    for (const auto& s : w.bytes) bytes += s.size();
  later(bytes, false,
        [this, asked = std::vector(writes.begin(), writes.end()), done = std::move(done)] {
          std::vector<TierOutcome> ends;
          for (const RecordWrite& w : asked) ends.push_back(write_now(w));
          mailbox_.post([ends = std::move(ends), done] { done(ends); });
        });
}

TierOutcome MemoryTier::write_now(const RecordWrite& write) {
  if (down_ || random_.chance(options_.fail_chance)) {
    counts_.failed += 1;
    return TierOutcome::failed;
  }
  if (records_.contains(write.of->name)) return TierOutcome::already;
  const RecordHead head{*write.of, write.segments, write.recompute_us};
  const std::uint64_t size = record_bytes(head), capacity = options_.traits.capacity_bytes;
  if (capacity != 0 && size > capacity) {
    counts_.refused += 1;
    return TierOutcome::full;
  }
  while (capacity != 0 && counts_.stored_bytes + size > capacity) {
    drop(RecordName(order_.front()));
    counts_.reclaimed_records += 1;
  }
  if (random_.chance(options_.lose_chance)) return TierOutcome::ok;
  std::vector<std::byte> stored(size);
  std::optional<Seal> seal;
  if (options_.secret) seal.emplace(*options_.secret, write.tenant);
  encode_record(head, write.bytes, stored, seal ? &*seal : nullptr);
  records_.emplace(write.of->name, std::move(stored));
  order_.push_back(write.of->name);
  counts_.stored_bytes += size;
  counts_.written_records += 1;
  counts_.written_bytes += size;
  return TierOutcome::ok;
}

void MemoryTier::erase(std::span<const RecordName> names) {
  later(0, false, [this, asked = std::vector(names.begin(), names.end())] {
    for (const RecordName& name : asked) drop(name);
  });
}

void MemoryTier::flush(std::function<void()> done) {
  later(0, false, [this, done = std::move(done)] { mailbox_.post(done); });
}

TierCost MemoryTier::cost() const {
  if (options_.claims)
    return {.first_byte_s = options_.claims->first_byte_s,
            .bytes_per_s = options_.claims->bytes_per_s,
            .queued_bytes = queued_bytes_};
  return {.first_byte_s = static_cast<double>(options_.first_byte_ns) * 1e-9,
          .bytes_per_s = options_.bytes_per_s,
          .queued_bytes = queued_bytes_};
}

TierStats MemoryTier::stats() const {
  TierStats stats = counts_;
  stats.open = down_ ? 0 : 1;
  stats.records = records_.size();
  return stats;
}

}  // namespace quire
