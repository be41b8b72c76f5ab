#include "kv/tier/store_tier.h"

#include <algorithm>
#include <map>

#include "kv/tier/seal.h"

namespace quire {
namespace {

constexpr std::uint64_t kPutBytes = 4 << 20;

std::uint64_t value_bytes(const RecordWrite& w) {
  std::uint64_t bytes = 0;
  for (const auto& s : w.bytes) bytes += s.size();
  return bytes;
}

std::vector<std::string> value_names(std::span<const RecordName> names) {
  std::vector<std::string> result;
  result.reserve(names.size());
  for (const RecordName& name : names) result.push_back(name.hex());
  return result;
}

}  // namespace

StoreTier::StoreTier(StoreTierOptions options)
    : options_(std::move(options)),
      traits_{.name = "remote", .shared = true, .durable = true, .capacity_bytes = 0},
      breaker_(options_.breaker),
      reader_(std::make_unique<Courier>(Courier::Way::thread)),
      writer_(std::make_unique<Courier>(Courier::Way::thread)) {
  CHECK(options_.mailbox != nullptr && options_.open);
}

StoreTier::~StoreTier() {
  stopping_.store(true, std::memory_order_release);
  reader_.reset();
  writer_.reset();
}

bool StoreTier::ask(Line& line, const std::function<Status(ValueStore&)>& call) {
  if (stopping_.load(std::memory_order_acquire) || !breaker_.may_try(clock_.now())) return false;
  Status status;
  if (!line.store) {
    auto opened = options_.open();
    if (opened.ok())
      line.store = std::move(opened.value());
    else
      status = opened.error();
  }
  if (status.ok()) status = call(*line.store);
  if (!status.ok()) line.store.reset();  // what comes next on it may belong to this call
  if (breaker_.ended(status.ok(), clock_.now()))
    say(status.ok() ? "shared store: it answers again"
                    : "shared store: " + status.error().message +
                          "; going on without it, it is tried again now and then");
  return status.ok();
}

void StoreTier::find(std::span<const RecordName> names, FindDone done) {
  reader_->run([this, asked = value_names(names), done = std::move(done)] {
    std::vector<std::uint8_t> there(asked.size(), 0);
    if (!ask(asking_, [&](ValueStore& s) { return s.contains(asked, there); }))
      std::ranges::fill(there, 0);
    post([there = std::move(there), done] { done(there); });
  });
}

void StoreTier::read(std::span<const SegmentRead> reads, ReadDone done) {
  for (const SegmentRead& r : reads) meter_.queue(r.to.size());
  reader_->run([this, asked = Reads(reads.begin(), reads.end()), done = std::move(done)] {
    const std::vector<TierOutcome> outcomes = get(asked);
    std::vector<ReadEnd> ends;
    for (std::uint32_t i = 0; i < asked.size(); ++i) {
      meter_.unqueue(asked[i].to.size());
      ends.push_back({i, outcomes[i]});
    }
    post([ends = std::move(ends), done] { done(ends, true); });
  });
}

std::vector<TierOutcome> StoreTier::get(const Reads& reads) {
  std::map<RecordName, std::vector<std::size_t>> records;  // reads of each
  for (std::size_t i = 0; i < reads.size(); ++i) records[reads[i].of->name].push_back(i);
  std::vector<std::string> names;
  std::vector<std::span<const std::size_t>> of;
  for (const auto& [name, which] : records) {
    names.push_back(name.hex());
    of.emplace_back(which);
  }
  std::vector<TierOutcome> outcomes(reads.size(), TierOutcome::absent);
  std::vector<std::string> bad;
  const Nanoseconds start = clock_.now();
  Nanoseconds first = 0;
  std::uint64_t first_bytes = 0, bytes = 0;
  const bool works = ask(asking_, [&](ValueStore& s) {
    return s.get(names, [&](std::size_t which, std::span<const std::byte> value) {
      if (which >= of.size()) return;
      take(reads, of[which], value, outcomes);
      if (outcomes[of[which].front()] == TierOutcome::corrupt) bad.push_back(names[which]);
      bytes += value.size();
      if (first == 0) first = clock_.now() - start, first_bytes = value.size();
    });
  });
  if (!works)
    for (TierOutcome& o : outcomes)
      if (o == TierOutcome::absent)
        o = stopping_.load(std::memory_order_acquire) ? TierOutcome::cancelled
                                                      : TierOutcome::failed;
  for (const TierOutcome o : outcomes) {
    counts_.absent += o == TierOutcome::absent;
    counts_.failed += o == TierOutcome::failed;
  }
  if (first != 0)
    meter_.served(static_cast<double>(first) * 1e-9,
                  static_cast<double>(clock_.now() - start - first) * 1e-9, bytes - first_bytes);
  counts_.corrupt += bad.size();
  if (!bad.empty()) ask(asking_, [&](ValueStore& s) { return s.erase(bad); });
  return outcomes;
}

// Opens one record and copies the segments that were asked for. All or none of it is right.
void StoreTier::take(const Reads& reads, std::span<const std::size_t> of_record,
                     std::span<const std::byte> value, std::vector<TierOutcome>& outcomes) {
  const SegmentRead& any = reads[of_record.front()];
  const Seal seal(options_.secret, any.tenant);
  const Result<RecordView> record = read_record(value, &seal);
  bool right = record.ok() && record.value().head.identity == *any.of &&
               record.value().record_bytes == value.size();
  for (const std::size_t i : of_record) {
    if (!right) break;
    const RecordView& view = record.value();
    const SegmentRead& r = reads[i];
    right =
        r.segment < view.head.segments.size() &&
        view.head.segments[r.segment].bytes == r.to.size() &&
        view.read_segment(r.segment, value.subspan(view.segment_at[r.segment], r.to.size()), r.to);
  }
  for (const std::size_t i : of_record) {
    outcomes[i] = right ? TierOutcome::ok : TierOutcome::corrupt;
    if (!right) continue;
    ++counts_.read_segments;
    counts_.read_bytes += reads[i].to.size();
  }
}

void StoreTier::write(std::span<const RecordWrite> writes, WriteDone done) {
  std::uint64_t bytes = 0;
  for (const RecordWrite& w : writes) bytes += value_bytes(w);
  const std::uint64_t before = queued_writes_.fetch_add(bytes, std::memory_order_relaxed);
  if (before + bytes > options_.write_queue_bytes) {
    queued_writes_.fetch_sub(bytes, std::memory_order_relaxed);
    counts_.refused += writes.size();
    std::vector<TierOutcome> full(writes.size(), TierOutcome::full);
    return post([full = std::move(full), done = std::move(done)] { done(full); });
  }
  writer_->run([this, bytes, asked = std::vector(writes.begin(), writes.end()),
                done = std::move(done)] {
    std::vector<TierOutcome> outcomes = put(asked);
    if (stopping_.load(std::memory_order_acquire))
      std::ranges::replace(outcomes, TierOutcome::failed, TierOutcome::cancelled);
    counts_.failed += static_cast<std::uint64_t>(std::ranges::count(outcomes, TierOutcome::failed));
    queued_writes_.fetch_sub(bytes, std::memory_order_relaxed);
    post([outcomes = std::move(outcomes), done] { done(outcomes); });
  });
}

// Writes what is not there yet, some megabytes at a time.
std::vector<TierOutcome> StoreTier::put(std::span<const RecordWrite> writes) {
  std::vector<TierOutcome> outcomes(writes.size(), TierOutcome::failed);
  std::vector<std::string> names;
  for (const RecordWrite& w : writes) names.push_back(w.of->name.hex());
  std::vector<std::uint8_t> there(writes.size(), 0);
  if (!ask(writing_, [&](ValueStore& s) { return s.contains(names, there); })) return outcomes;
  std::vector<std::vector<std::byte>> encoded;
  std::vector<NamedValue> values;
  std::vector<std::size_t> which;
  std::uint64_t bytes = 0;
  const auto send = [&] {
    const bool works = ask(writing_, [&](ValueStore& s) { return s.put(values); });
    for (std::size_t i = 0; works && i < which.size(); ++i) {
      outcomes[which[i]] = TierOutcome::ok;
      ++counts_.written_records;
      counts_.written_bytes += values[i].value.size();
    }
    values.clear();
    which.clear();
    encoded.clear();
    bytes = 0;
    return works;
  };
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const RecordWrite& w = writes[i];
    const RecordHead head{
        .identity = *w.of, .segments = w.segments, .recompute_us = w.recompute_us};
    if (there[i] || record_bytes(head) > kStoredValueMax) {
      outcomes[i] = there[i] ? TierOutcome::already : TierOutcome::full;
      continue;
    }
    const Seal seal(options_.secret, w.tenant);
    encode_record(head, w.bytes, encoded.emplace_back(record_bytes(head)), &seal);
    values.push_back({names[i], encoded.back()});
    which.push_back(i);
    bytes += encoded.back().size();
    if (bytes >= kPutBytes && !send()) return outcomes;
  }
  if (!values.empty()) send();
  return outcomes;
}

void StoreTier::erase(std::span<const RecordName> names) {
  writer_->run([this, asked = value_names(names)] {
    ask(writing_, [&](ValueStore& s) { return s.erase(asked); });
  });
}

void StoreTier::flush(std::function<void()> done) {
  writer_->run([this, done = std::move(done)] { post(done); });
}

TierStats StoreTier::stats() const {
  TierStats s;
  s.open = !breaker_.open();
  s.read_segments = counts_.read_segments;
  s.read_bytes = counts_.read_bytes;
  s.written_records = counts_.written_records;
  s.written_bytes = counts_.written_bytes;
  s.absent = counts_.absent;
  s.corrupt = counts_.corrupt;
  s.failed = counts_.failed;
  s.refused = counts_.refused;
  s.closings = breaker_.openings();
  return s;
}

Result<std::unique_ptr<Tier>> open_store_tier(const TierSettings& settings, OpenValueStore open) {
  if (!settings.secret)
    return Error{Code::invalid, settings.place + ": a place that others share needs a secret"};
  StoreTierOptions options;
  options.open = std::move(open);
  options.secret = *settings.secret;
  options.mailbox = settings.mailbox;
  options.log = settings.log;
  return std::unique_ptr<Tier>(std::make_unique<StoreTier>(std::move(options)));
}

}  // namespace quire
