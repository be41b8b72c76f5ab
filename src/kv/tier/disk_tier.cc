#include "kv/tier/disk_tier.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "kv/tier/tiers.h"

namespace quire {
namespace {

constexpr std::uint64_t kWriteSliceBytes = 4 << 20;
constexpr Nanoseconds kMillisecond = 1'000'000, kDiskSecond = 1'000'000'000;
constexpr Nanoseconds kReopenMax = 60 * kDiskSecond, kSaveEvery = 5 * kDiskSecond;

std::uint64_t write_bytes(const RecordWrite& w) {
  std::uint64_t bytes = 0;
  for (const auto& s : w.bytes) bytes += s.size();
  return bytes;
}

// The sums since the start; what is true now is the last store's.
TierStats counted_since(const TierStats& before, TierStats now) {
  now.read_segments += before.read_segments;
  now.read_bytes += before.read_bytes;
  now.written_records += before.written_records;
  now.written_bytes += before.written_bytes;
  now.absent += before.absent;
  now.corrupt += before.corrupt;
  now.failed += before.failed;
  now.refused += before.refused;
  now.reclaimed_records += before.reclaimed_records;
  now.closings += before.closings;
  return now;
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskTierOptions options) {
  CHECK(options.mailbox != nullptr);
  if (!options.files) options.files = system_files();
  TRY(std::unique_ptr<DiskStore> store, DiskStore::open(*options.files, options.store));
  if (options.log) {
    for (const std::string& problem : store->problems())
      options.log(store->folder().path() + ": " + problem);
    if (options.files->way() == "threads")
      options.log("disk tier: io_uring is not available; threads read and write instead");
  }
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(options), std::move(store)));
}

DiskTier::DiskTier(DiskTierOptions options, std::unique_ptr<DiskStore> store)
    : options_(std::move(options)),
      files_(std::move(options_.files)),
      secret_(store->folder().secret()),
      traits_{.name = "disk",
              .shared = false,
              .durable = true,
              .capacity_bytes = options_.store.capacity_bytes},
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      inbox_([this] {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t put = ::write(wake_, &one, sizeof one);
      }),
      store_(std::move(store)) {
  CHECK(wake_ >= 0);
  meter_.restore(store_->saved_cost());
  // A reopened store has the same secret, whatever happened to the file.
  options_.store.folder.secret = secret_;
  publish();
  thread_ = std::thread([this] { work(); });
}

DiskTier::~DiskTier() {
  stopping_.store(true, std::memory_order_release);
  ask([] {});
  thread_.join();
  ::close(wake_);
}

void DiskTier::ask(Mailbox::Letter letter) { inbox_.post(std::move(letter)); }

void DiskTier::find(std::span<const RecordName> names, FindDone done) {
  ask([this, asked = std::vector(names.begin(), names.end()), done = std::move(done)] {
    std::vector<std::uint8_t> there;
    for (const RecordName& name : asked) there.push_back(store_ && store_->contains(name));
    options_.mailbox->post([there = std::move(there), done] { done(there); });
  });
}

void DiskTier::read(std::span<const SegmentRead> reads, ReadDone done) {
  for (const SegmentRead& r : reads) meter_.queue(r.to.size());
  ask([this, asked = std::vector(reads.begin(), reads.end()), done = std::move(done)] {
    serve_reads(asked, done);
  });
}

void DiskTier::serve_reads(const std::vector<SegmentRead>& reads, const ReadDone& done) {
  const Nanoseconds start = clock_.now();
  Nanoseconds posted = start, first = 0;
  std::uint64_t first_bytes = 0, bytes = 0;
  std::vector<ReadEnd> ends;
  const auto post = [&](bool last) {
    options_.mailbox->post([ends = std::exchange(ends, {}), done, last] { done(ends, last); });
  };
  const auto ended = [&](ReadEnd end) {
    const std::uint64_t size = reads[end.read].to.size();
    meter_.unqueue(size);
    const Nanoseconds time = clock_.now();
    if (end.outcome == TierOutcome::ok) {
      if (first == 0) first = time - start, first_bytes = size;
      bytes += size;
    }
    if (time - posted > kMillisecond && !ends.empty()) {  // others need not wait for the rest
      post(false);
      posted = time;
    }
    ends.push_back(end);
  };
  if (store_ && !stopping_.load(std::memory_order_acquire)) {
    store_->read(reads, ended);
  } else {
    const TierOutcome why = store_ ? TierOutcome::cancelled : TierOutcome::failed;
    for (std::uint32_t i = 0; i < reads.size(); ++i) ended({i, why});
  }
  post(true);
  if (first != 0)
    meter_.served(static_cast<double>(first) * 1e-9,
                  static_cast<double>(clock_.now() - start - first) * 1e-9, bytes - first_bytes);
  close_if_broken();
}

void DiskTier::write(std::span<const RecordWrite> writes, WriteDone done) {
  WriteJob job{.writes = {writes.begin(), writes.end()},
               .outcomes = std::vector(writes.size(), TierOutcome::full),
               .done = std::move(done)};
  for (const RecordWrite& w : writes) job.bytes += write_bytes(w);
  const std::uint64_t queued = queued_writes_.fetch_add(job.bytes, std::memory_order_relaxed);
  if (queued + job.bytes > options_.write_queue_bytes) {
    queued_writes_.fetch_sub(job.bytes, std::memory_order_relaxed);
    options_.mailbox->post([outcomes = job.outcomes, done = job.done] { done(outcomes); });
    return;
  }
  auto shared = std::make_shared<WriteJob>(std::move(job));
  ask([this, shared] { writes_.push_back(std::move(*shared)); });
}

void DiskTier::erase(std::span<const RecordName> names) {
  ask([this, asked = std::vector(names.begin(), names.end())] {
    if (store_) store_->erase(asked);
    close_if_broken();
  });
}

void DiskTier::clear() {
  ask([this] {
    while (write_some()) {  // what was given before goes, too
    }
    if (store_) (void)store_->clear();  // a failure closes the tier
    close_if_broken();
  });
}

void DiskTier::flush(std::function<void()> done) {
  ask([this, done = std::move(done)] { writes_.push_back(WriteJob{.flushed = done}); });
}

// A slice of the oldest job. False: there is none.
bool DiskTier::write_some() {
  if (writes_.empty()) return false;
  WriteJob& job = writes_.front();
  const bool able = store_ && !stopping_.load(std::memory_order_acquire);
  if (job.flushed) {
    if (able) {
      store_->set_cost(meter_.cost());
      (void)store_->save(true);  // a failure closes the tier
    }
    options_.mailbox->post(std::move(job.flushed));
    writes_.pop_front();
    close_if_broken();
    return true;
  }
  const std::size_t begin = job.next;
  std::uint64_t slice = 0;
  while (job.next < job.writes.size() && (slice == 0 || slice < kWriteSliceBytes))
    slice += write_bytes(job.writes[job.next++]);
  const auto outcomes = std::span(job.outcomes).subspan(begin, job.next - begin);
  if (able)
    store_->write(std::span(job.writes).subspan(begin, job.next - begin), outcomes);
  else
    std::ranges::fill(outcomes, store_ ? TierOutcome::cancelled : TierOutcome::failed);
  if (job.next == job.writes.size()) {
    queued_writes_.fetch_sub(job.bytes, std::memory_order_relaxed);
    options_.mailbox->post(
        [ends = std::move(job.outcomes), done = std::move(job.done)] { done(ends); });
    writes_.pop_front();
  }
  close_if_broken();
  return true;
}

void DiskTier::close_if_broken() {
  if (!store_ || store_->broken() == nullptr) return;
  const Nanoseconds now = clock_.now();
  quiet_ = before_.closings > 0 && now - opened_at_ < kReopenMax;
  reopen_wait_ = quiet_ ? reopen_wait_ * 2 : options_.reopen_ns;
  reopen_at_ = now + std::min(reopen_wait_, kReopenMax);
  if (options_.log && !quiet_)
    options_.log(store_->broken()->message + "; the disk tier is closed until this works again");
  before_ = counted_since(before_, store_->stats());
  before_.closings += 1;
  store_.reset();
}

void DiskTier::reopen_if_due() {
  if (store_ || clock_.now() < reopen_at_) return;
  auto store = DiskStore::open(*files_, options_.store);
  opened_at_ = clock_.now();
  if (store.ok() && store.value()->folder().probe().ok()) {
    store_ = std::move(store.value());
    if (options_.log && !quiet_)
      options_.log(store_->folder().path() + ": the disk tier is open again");
    return;
  }
  reopen_wait_ = std::min(reopen_wait_ * 2, kReopenMax);
  reopen_at_ = opened_at_ + reopen_wait_;
}

// The more the snapshot costs, the less often it is written.
void DiskTier::save_if_due() {
  const Nanoseconds start = clock_.now();
  if (!store_ || start < save_at_ || store_->stats().written_records == saved_writes_) return;
  saved_writes_ = store_->stats().written_records;
  store_->set_cost(meter_.cost());
  (void)store_->save(false);  // a failure closes the tier
  const Nanoseconds took = clock_.now() - start;
  save_at_ = clock_.now() + std::max(kSaveEvery, 50 * took);
  close_if_broken();
}

void DiskTier::publish() {
  TierStats stats = counted_since(before_, store_ ? store_->stats() : TierStats());
  stats.open = store_ ? 1 : 0;
  meter_.publish(stats);
}

void DiskTier::wait() {
  const Nanoseconds now = clock_.now();
  const Nanoseconds until = store_ ? save_at_ : reopen_at_;
  const Nanoseconds wait = std::clamp(until - now, kMillisecond, kDiskSecond);
  pollfd woken{.fd = wake_, .events = POLLIN, .revents = 0};
  ::poll(&woken, 1, static_cast<int>(wait / kMillisecond));
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
}

void DiskTier::work() {
  save_at_ = clock_.now() + kSaveEvery;
  while (!stopping_.load(std::memory_order_acquire)) {
    const bool asked = inbox_.drain() > 0;
    const bool wrote = write_some();
    reopen_if_due();
    save_if_due();
    publish();
    if (!asked && !wrote) wait();
  }
  inbox_.drain();
  while (write_some()) {
  }
  if (store_) {
    store_->set_cost(meter_.cost());
    (void)store_->save(true);  // nobody is left to tell
  }
  publish();
}

extern const TierKind kDiskTierKind = {
    "disk", "a folder: disk:FOLDER",
    [](const TierSettings& settings, const std::string& rest) -> Result<std::unique_ptr<Tier>> {
      DiskTierOptions options;
      options.store.folder.path = rest;
      options.store.folder.secret = settings.secret;
      if (settings.capacity_bytes != 0) options.store.capacity_bytes = settings.capacity_bytes;
      options.mailbox = settings.mailbox;
      options.log = settings.log;
      TRY(std::unique_ptr<DiskTier> tier, DiskTier::open(std::move(options)));
      return std::unique_ptr<Tier>(std::move(tier));
    }};

}  // namespace quire
