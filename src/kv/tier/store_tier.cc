#include "kv/tier/store_tier.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "kv/tier/courier.h"
#include "kv/tier/seal.h"
#include "kv/tier/tier_meter.h"

namespace quire {
namespace {

constexpr std::uint64_t kPutBytes = 4 << 20;
constexpr std::chrono::seconds kLeftBehind{1};  // a thread that has not ended by then hangs

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

// What one thread asks through.
struct StoreLine {
  std::unique_ptr<ValueStore> store;
  std::atomic<Nanoseconds> waits_since{0};  // that the call in progress moved; 0: there is none
  bool full = false;                        // said the last call
};

}  // namespace

struct StoreTier::Fetch {
  std::vector<SegmentRead> reads;
  ReadDone done;
  std::mutex gate;    // whoever writes to the memory of the reads has it
  bool over = false;  // they have ended: the memory is not ours any more
};

struct StoreTier::Inside {
  StoreTierOptions options;
  SteadyClock clock;
  Breaker breaker;
  TierMeter meter;
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> queued_writes{0};
  struct Counts {
    std::atomic<std::uint64_t> read_segments{0}, read_bytes{0}, written_records{0},
        written_bytes{0}, absent{0}, corrupt{0}, failed{0}, refused{0};
  } counts;
  std::mutex fetches_gate, mail_gate;
  bool left_behind = false;  // under mail_gate: the mailbox is no more
  StoreLine asking, writing;
  Courier reader{Courier::Way::thread}, writer{Courier::Way::thread};  // use the others: end first

  explicit Inside(StoreTierOptions o) : options(std::move(o)), breaker(options.breaker) {}

  bool ends() const { return stopping.load(std::memory_order_acquire); }
  void post(std::function<void()> letter) {
    const std::lock_guard lock(mail_gate);
    if (!left_behind) options.mailbox->post(std::move(letter));
  }
  void say(const std::string& line) const {
    if (options.log) options.log(line);
  }
  bool hangs(const StoreLine& line) const {
    const Nanoseconds since = line.waits_since.load(std::memory_order_relaxed);
    return options.patience > 0 && since != 0 && clock.now() - since > options.patience;
  }

  // True: `call` worked. Refuses without asking while the breaker is open.
  bool ask(StoreLine& line, const std::function<Status(ValueStore&)>& call);
  void fetch(const std::shared_ptr<Fetch>& fetch);
  void take(Fetch& fetch, std::span<const std::size_t> of_record, std::span<const std::byte> value,
            std::vector<TierOutcome>& outcomes);
  void end(Fetch& fetch, const std::vector<TierOutcome>& outcomes);
  std::vector<TierOutcome> put(std::span<const RecordWrite> writes);
};

StoreTier::StoreTier(StoreTierOptions options)
    : traits_{.name = "remote",
              .shared = true,
              .durable = true,
              .capacity_bytes = options.capacity_bytes},
      inside_(std::make_unique<Inside>(std::move(options))) {
  CHECK(inside_->options.mailbox != nullptr && inside_->options.open);
}

StoreTier::~StoreTier() {
  Inside& in = *inside_;
  in.stopping.store(true, std::memory_order_release);
  if (in.options.patience == 0) return;  // its calls end
  const bool ended = in.reader.end_within(kLeftBehind);
  if (in.writer.end_within(kLeftBehind) && ended) return;
  for (const auto& fetch : fetches_) {
    const std::lock_guard lock(fetch->gate);
    if (!fetch->over) in.end(*fetch, std::vector(fetch->reads.size(), TierOutcome::cancelled));
  }
  const std::lock_guard lock(in.mail_gate);
  in.left_behind = true;
  static std::mutex gate;
  static auto* const orphans = new std::vector<Inside*>;  // a thread still uses each, for ever
  const std::lock_guard one_at_a_time(gate);
  orphans->push_back(inside_.release());
}

bool StoreTier::Inside::ask(StoreLine& line, const std::function<Status(ValueStore&)>& call) {
  line.full = false;
  if (ends() || !breaker.may_try(clock.now())) return false;
  const auto now_moved = [this, &line] {
    line.waits_since.store(clock.now(), std::memory_order_relaxed);
  };
  now_moved();
  Status status;
  if (!line.store) {
    auto opened = options.open();
    if (opened.ok())
      line.store = std::move(opened.value());
    else
      status = opened.error();
    if (line.store) line.store->when_it_moves(now_moved);
  }
  if (status.ok()) status = call(*line.store);
  line.waits_since.store(0, std::memory_order_relaxed);
  line.full = !status.ok() && status.error().code == Code::exhausted;
  const bool works = status.ok() || line.full;
  if (!works) line.store.reset();  // what comes next on it may belong to this call
  if (breaker.ended(works, clock.now()))
    say(works ? "shared store: it answers again"
              : "shared store: " + status.error().message +
                    "; going on without it, it is tried again now and then");
  return status.ok();
}

// A call that does not come back opens the breaker, and nobody waits for it any longer.
void StoreTier::look_for_hangs() const {
  Inside& in = *inside_;
  if (in.options.patience == 0) return;
  const bool reading = in.hangs(in.asking);
  if (!reading && !in.hangs(in.writing)) return;
  if (in.breaker.trip(in.clock.now()))
    in.say("shared store: a call does not come back; going on without it");
  if (!reading) return;
  const std::lock_guard lock(in.fetches_gate);
  for (const auto& fetch : fetches_) {
    const std::unique_lock held(fetch->gate, std::try_to_lock);
    if (held && !fetch->over) in.end(*fetch, std::vector(fetch->reads.size(), TierOutcome::failed));
  }
}

void StoreTier::find(std::span<const RecordName> names, FindDone done) {
  look_for_hangs();
  Inside* const in = inside_.get();
  std::vector<std::string> asked = value_names(names);
  if (in->breaker.open()) {
    in->post(
        [there = std::vector<std::uint8_t>(names.size()), done = std::move(done)] { done(there); });
    if (in->breaker.due(in->clock.now()) && !in->hangs(in->asking) && !asked.empty())
      in->reader.run([in, asked = std::vector{asked.front()}] {
        std::uint8_t there = 0;
        in->ask(in->asking, [&](ValueStore& s) { return s.contains(asked, {&there, 1}); });
      });
    return;
  }
  in->reader.run([in, asked = std::move(asked), done = std::move(done)] {
    std::vector<std::uint8_t> there(asked.size(), 0);
    if (!in->ask(in->asking, [&](ValueStore& s) { return s.contains(asked, there); }))
      std::ranges::fill(there, 0);
    in->post([there = std::move(there), done] { done(there); });
  });
}

void StoreTier::read(std::span<const SegmentRead> reads, ReadDone done) {
  look_for_hangs();
  Inside* const in = inside_.get();
  for (const SegmentRead& r : reads) in->meter.queue(r.to.size());
  auto fetch = std::make_shared<Fetch>();
  fetch->reads.assign(reads.begin(), reads.end());
  fetch->done = std::move(done);
  if (in->hangs(in->asking)) {
    const std::lock_guard lock(fetch->gate);
    return in->end(*fetch, std::vector(reads.size(), TierOutcome::failed));
  }
  if (in->options.patience > 0) {
    const std::lock_guard lock(in->fetches_gate);
    std::erase_if(fetches_, [](const auto& f) {
      const std::unique_lock held(f->gate, std::try_to_lock);
      return held && f->over;
    });
    fetches_.push_back(fetch);
  }
  in->reader.run([in, fetch] { in->fetch(fetch); });
}

// Under the fetch's gate.
void StoreTier::Inside::end(Fetch& fetch, const std::vector<TierOutcome>& outcomes) {
  std::vector<ReadEnd> ends;
  for (std::uint32_t i = 0; i < outcomes.size(); ++i) {
    meter.unqueue(fetch.reads[i].to.size());
    ends.push_back({i, outcomes[i]});
    counts.absent += outcomes[i] == TierOutcome::absent;
    counts.failed += outcomes[i] == TierOutcome::failed;
  }
  fetch.over = true;
  post([ends = std::move(ends), done = std::move(fetch.done)] { done(ends, true); });
}

void StoreTier::Inside::fetch(const std::shared_ptr<Fetch>& fetch) {
  const std::vector<SegmentRead>& reads = fetch->reads;
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
  const Nanoseconds start = clock.now();
  Nanoseconds first = 0;
  std::uint64_t first_bytes = 0, bytes = 0;
  const bool works = ask(asking, [&](ValueStore& s) {
    return s.get(names, [&](std::size_t which, std::span<const std::byte> value) {
      if (which >= of.size()) return;
      take(*fetch, of[which], value, outcomes);
      if (outcomes[of[which].front()] == TierOutcome::corrupt) bad.push_back(names[which]);
      bytes += value.size();
      if (first == 0) first = clock.now() - start, first_bytes = value.size();
    });
  });
  if (!works)
    std::ranges::replace(outcomes, TierOutcome::absent,
                         ends() ? TierOutcome::cancelled : TierOutcome::failed);
  if (first != 0)
    meter.served(static_cast<double>(first) * 1e-9,
                 static_cast<double>(clock.now() - start - first) * 1e-9, bytes - first_bytes);
  counts.corrupt += bad.size();
  {
    const std::lock_guard lock(fetch->gate);
    if (!fetch->over) end(*fetch, outcomes);
  }
  if (!bad.empty()) ask(asking, [&](ValueStore& s) { return s.erase(bad); });
}

// Opens one record and copies the segments that were asked for. All or none of it is right.
void StoreTier::Inside::take(Fetch& fetch, std::span<const std::size_t> of_record,
                             std::span<const std::byte> value, std::vector<TierOutcome>& outcomes) {
  const std::lock_guard lock(fetch.gate);
  if (fetch.over) return;
  const std::vector<SegmentRead>& reads = fetch.reads;
  const SegmentRead& any = reads[of_record.front()];
  const Seal seal(options.secret, any.tenant);
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
    ++counts.read_segments;
    counts.read_bytes += reads[i].to.size();
  }
}

void StoreTier::write(std::span<const RecordWrite> writes, WriteDone done) {
  Inside* const in = inside_.get();
  std::uint64_t bytes = 0;
  for (const RecordWrite& w : writes) bytes += value_bytes(w);
  const auto answer = [&](TierOutcome outcome) {
    in->post([all = std::vector(writes.size(), outcome), done = std::move(done)] { done(all); });
  };
  if (in->hangs(in->writing)) return answer(TierOutcome::failed);
  const std::uint64_t before = in->queued_writes.fetch_add(bytes, std::memory_order_relaxed);
  if (before + bytes > in->options.write_queue_bytes) {
    in->queued_writes.fetch_sub(bytes, std::memory_order_relaxed);
    in->counts.refused += writes.size();
    return answer(TierOutcome::full);
  }
  in->writer.run(
      [in, bytes, asked = std::vector(writes.begin(), writes.end()), done = std::move(done)] {
        std::vector<TierOutcome> outcomes = in->put(asked);
        if (in->ends()) std::ranges::replace(outcomes, TierOutcome::failed, TierOutcome::cancelled);
        in->counts.failed +=
            static_cast<std::uint64_t>(std::ranges::count(outcomes, TierOutcome::failed));
        in->queued_writes.fetch_sub(bytes, std::memory_order_relaxed);
        in->post([outcomes = std::move(outcomes), done] { done(outcomes); });
      });
}

// Writes what is not there yet, some megabytes at a time.
std::vector<TierOutcome> StoreTier::Inside::put(std::span<const RecordWrite> writes) {
  std::vector<TierOutcome> outcomes(writes.size(), TierOutcome::failed);
  std::vector<std::string> names;
  for (const RecordWrite& w : writes) names.push_back(w.of->name.hex());
  std::vector<std::uint8_t> there(writes.size(), 0);
  if (!ask(writing, [&](ValueStore& s) { return s.contains(names, there); })) return outcomes;
  std::vector<std::vector<std::byte>> encoded;
  std::vector<NamedValue> values;
  std::vector<std::size_t> which;
  std::uint64_t bytes = 0;
  const auto send = [&] {
    const bool works = ask(writing, [&](ValueStore& s) { return s.put(values); });
    if (!works && writing.full) {
      counts.refused += which.size();
      for (const std::size_t i : which) outcomes[i] = TierOutcome::full;
    }
    for (std::size_t i = 0; works && i < which.size(); ++i) {
      outcomes[which[i]] = TierOutcome::ok;
      ++counts.written_records;
      counts.written_bytes += values[i].value.size();
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
    const Seal seal(options.secret, w.tenant);
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
  Inside* const in = inside_.get();
  if (in->hangs(in->writing)) return;
  in->writer.run([in, asked = value_names(names)] {
    in->ask(in->writing, [&](ValueStore& s) { return s.erase(asked); });
  });
}

void StoreTier::flush(std::function<void()> done) {
  Inside* const in = inside_.get();
  if (in->hangs(in->writing)) return in->post(std::move(done));
  in->writer.run([in, done = std::move(done)] { in->post(done); });
}

TierCost StoreTier::cost() const { return inside_->meter.cost(); }

TierStats StoreTier::stats() const {
  look_for_hangs();
  const Inside::Counts& counts = inside_->counts;
  TierStats s;
  s.open = !inside_->breaker.open();
  s.read_segments = counts.read_segments;
  s.read_bytes = counts.read_bytes;
  s.written_records = counts.written_records;
  s.written_bytes = counts.written_bytes;
  s.absent = counts.absent;
  s.corrupt = counts.corrupt;
  s.failed = counts.failed;
  s.refused = counts.refused;
  s.closings = inside_->breaker.openings();
  return s;
}

Result<std::unique_ptr<Tier>> open_store_tier(const TierSettings& settings, OpenValueStore open,
                                              Nanoseconds patience, std::uint64_t capacity_bytes) {
  if (!settings.secret)
    return Error{Code::invalid, settings.place + ": a place that others share needs a secret"};
  StoreTierOptions options;
  options.open = std::move(open);
  options.secret = *settings.secret;
  options.mailbox = settings.mailbox;
  options.log = settings.log;
  options.patience = patience;
  options.capacity_bytes = capacity_bytes;
  return std::unique_ptr<Tier>(std::make_unique<StoreTier>(std::move(options)));
}

}  // namespace quire
