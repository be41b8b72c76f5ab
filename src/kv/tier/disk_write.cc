// Appending records to volumes, keeping the bound, and repairing what fsck found.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kv/tier/disk_store.h"

namespace quire {
namespace {

constexpr std::uint64_t kBatchBytes = 4 << 20;
constexpr std::size_t kBatchRecords = 1024;
constexpr std::uint64_t kPieceBytes = 1 << 20;  // of a batch; the disk works on several at once

std::uint64_t padded_record(std::uint64_t bytes) { return align_up(bytes, kDiskUnit); }

}  // namespace

void DiskStore::write(std::span<const RecordWrite> writes, std::span<TierOutcome> outcomes) {
  CHECK(writes.size() == outcomes.size());
  trim_files();
  outcomes_ = outcomes;
  const std::uint32_t time = now();
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const RecordWrite& w = writes[i];
    const RecordHead head{*w.of, w.segments, w.recompute_us};
    const std::uint64_t bytes = record_bytes(head), padded = padded_record(bytes);
    const bool staged = std::ranges::any_of(
        staged_, [&](const Staged& s) { return s.entry.name == head.identity.name; });
    if (broken_ || folder_.read_only()) {
      outcomes[i] = TierOutcome::failed;
    } else if (staged || contains(head.identity.name)) {
      outcomes[i] = TierOutcome::already;
    } else if (padded > options_.capacity_bytes / 4 || !make_room(padded)) {
      outcomes[i] = broken_ ? TierOutcome::failed : TierOutcome::full;
      counts_.refused += 1;
    } else {
      const auto to =
          stage({.name = head.identity.name,
                 .volume = 0,
                 .at = 0,
                 .units = static_cast<std::uint32_t>(padded / kDiskUnit),
                 .head_units = static_cast<std::uint16_t>(record_head_bytes(head) / kDiskUnit),
                 .hits = 0,
                 .last_use = time,
                 .recompute_us = w.recompute_us},
                i);
      encode_record(head, w.bytes, to.first(bytes));
      std::fill(to.begin() + static_cast<std::ptrdiff_t>(bytes), to.end(), std::byte{});
    }
  }
  append_batch();
  outcomes_ = {};
}

// A place in the batch. What does not fit any more is written first.
std::span<std::byte> DiskStore::stage(const DiskEntry& entry, std::size_t number) {
  const std::uint64_t bytes = entry.bytes();
  const std::uint64_t end = current_ != 0 ? volumes_[current_].bytes : kVolumeHeadBytes;
  if (batch_bytes_ != 0 &&
      (batch_bytes_ + bytes > kBatchBytes || end + batch_bytes_ + bytes > volume_limit_ ||
       staged_.size() == kBatchRecords))
    append_batch();
  if (batch_bytes_ == 0) batch_.grow(std::max(kBatchBytes, align_up(bytes)));
  Staged& staged = staged_.emplace_back(Staged{entry, number});
  staged.entry.at = static_cast<std::uint32_t>(batch_bytes_ / kDiskUnit);
  const auto to = batch_.span().subspan(batch_bytes_, bytes);
  batch_bytes_ += bytes;
  return to;
}

void DiskStore::append_batch() {
  if (batch_bytes_ == 0) return;
  const auto bytes = batch_.span().first(align_up(batch_bytes_));
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(batch_bytes_), bytes.end(), std::byte{});
  const std::vector<Staged> staged = std::exchange(staged_, {});
  batch_bytes_ = 0;
  Status status;
  std::uint32_t number = 0;
  std::uint64_t at = 0;
  if (broken_) {
    status = *broken_;
  } else if (const auto volume = writable_volume(bytes.size()); !volume.ok()) {
    status = volume.error();
  } else {
    number = volume.value();
    at = align_up(volumes_[number].bytes);
    status = write_pages(number, at, bytes);
  }
  if (!status.ok()) fail(status.error());
  for (Staged s : staged) {
    if (s.number != kCopied)
      outcomes_[s.number] = status.ok() ? TierOutcome::ok : TierOutcome::failed;
    if (!status.ok()) {
      counts_.failed += 1;
      continue;
    }
    s.entry.volume = number;
    s.entry.at += static_cast<std::uint32_t>(at / kDiskUnit);
    add(s.entry);
    counts_.written_records += 1;
    counts_.written_bytes += s.entry.bytes();
  }
}

// The current volume if this fits, else a new one.
Result<std::uint32_t> DiskStore::writable_volume(std::uint64_t bytes) {
  if (current_ != 0 && volumes_[current_].bytes > kVolumeHeadBytes &&
      volumes_[current_].bytes + bytes > volume_limit_)
    finish_volume();
  if (broken_) return *broken_;
  if (current_ != 0) return current_;
  while (volumes_.size() >= kVolumesMax && reclaim(false)) {
  }
  if (broken_) return *broken_;
  // A file may have the highest number there is: then the lowest free one is next.
  std::uint32_t number = last_number_ + 1;
  if (number > kVolumeNumberMax)
    for (number = 1; volumes_.contains(number);) ++number;
  AlignedBuffer page(kFileAlign);
  encode_volume_head(number, page.span());
  volumes_[number];
  last_number_ = std::max(last_number_, number);
  if (const Status written = write_pages(number, 0, page.span()); !written.ok())
    return written.error();
  current_ = number;
  return number;
}

void DiskStore::finish_volume() {
  const std::uint32_t number = std::exchange(current_, 0);
  Volume& volume = volumes_[number];
  const DiskListing listing{.volumes = {{number, 1, align_up(volume.bytes)}},
                            .entries = index_.entries_of(number)};
  AlignedBuffer footer(footer_bytes(listing.entries.size()));
  encode_footer(listing, footer.span());
  const Status written = write_pages(number, listing.volumes[0].bytes, footer.span());
  if (!written.ok()) return fail(written.error());
  volume.finished = true;
  offer(number);
}

Status DiskStore::write_pages(std::uint32_t number, std::uint64_t at, std::span<std::byte> bytes) {
  TRY(const FileId file, volume_file(number));
  std::vector<IoRequest> requests;
  for (std::uint64_t done = 0; done < bytes.size(); done += kPieceBytes)
    requests.push_back(
        {.file = file,
         .write = true,
         .at = at + done,
         .bytes = bytes.subspan(done, std::min<std::uint64_t>(kPieceBytes, bytes.size() - done))});
  transfer(files_, requests, [](std::size_t) {});
  Volume& volume = volumes_[number];
  volume.unsynced = true;
  for (const IoRequest& r : requests) {
    const std::uint64_t end = r.at + r.done;
    if (end > volume.bytes) {
      volume_bytes_ += end - volume.bytes;
      volume.bytes = end;
    }
    if (r.error != 0 || r.done != r.bytes.size())
      return Error{Code::unavailable, folder_.volume_path(number) + ": cannot write: " +
                                          errno_text(r.error != 0 ? r.error : EIO)};
  }
  return {};
}

// Room for `bytes` more, with the footers and the page that they may need. False: there is none.
bool DiskStore::make_room(std::uint64_t bytes) {
  const auto needed = [&] {
    const std::uint64_t in_current = current_ != 0 ? volumes_[current_].records : 0;
    return used_bytes() + align_up(batch_bytes_) + align_up(bytes) + 2 * kVolumeHeadBytes +
           footer_bytes(in_current + staged_.size() + 1) + footer_bytes(1) +
           2 * (staged_.size() + 1) * sizeof(DiskEntry);
  };
  while (needed() > options_.capacity_bytes) {
    if (broken_) return false;
    if (reclaim(true)) continue;
    append_batch();  // perhaps the current volume is all there is
    if (current_ == 0 || volumes_[current_].records == 0) return false;
    finish_volume();
  }
  return true;
}

// The least valuable volume leaves. Its records that were used since they were written are copied,
// at most half of the volume, the best ones first.
bool DiskStore::reclaim(bool keep_used) {
  const auto picked = evictor_->pick(Nanoseconds{now()} * 1'000'000'000);
  if (!picked) return false;
  const std::uint32_t number = slot_volume_[static_cast<std::uint32_t>(*picked)];
  std::vector<DiskEntry> entries = index_.entries_of(number);
  std::vector<std::pair<DiskEntry, std::vector<std::byte>>> kept;
  if (keep_used) {
    std::erase_if(entries, [](const DiskEntry& e) { return e.hits == 0; });
    std::ranges::sort(entries, std::greater(), [](const DiskEntry& e) {
      return static_cast<double>(e.hits) * e.recompute_us / static_cast<double>(e.bytes());
    });
    std::uint64_t left = volumes_[number].bytes / 2;
    for (DiskEntry e : entries) {
      if (e.bytes() > left) continue;
      auto raw = read_raw(e);
      if (!raw.ok()) continue;
      left -= e.bytes();
      e.hits = 0;
      kept.emplace_back(e, std::move(raw.value()));
    }
  }
  counts_.reclaimed_records += volumes_[number].records - kept.size();
  remove_volume(number);
  for (const auto& [entry, bytes] : kept) {
    const auto to = stage(entry, kCopied);
    std::ranges::copy(bytes, to.begin());
  }
  return true;
}

void DiskStore::remove_volume(std::uint32_t number) {
  Volume& volume = volumes_[number];
  for (const DiskEntry& e : index_.entries_of(number)) forget(e.name);
  if (number == current_)
    current_ = 0;
  else
    withdraw(volume);
  close_file(volume);
  if (const Status removed = files_.remove(folder_.volume_path(number)); !removed.ok())
    if (removed.error().code != Code::not_found) fail(removed.error());
  volume_bytes_ -= volume.bytes;
  volumes_.erase(number);
}

Status DiskStore::clear() {
  while (!volumes_.empty() && !broken_) remove_volume(volumes_.begin()->first);
  if (broken_) return *broken_;
  return {};
}

Status DiskStore::repair(std::span<const VolumeDamage> damage) {
  // New volumes only: the current one may be damaged itself.
  if (current_ != 0) offer(std::exchange(current_, 0));
  for (const VolumeDamage& d : damage) {
    for (const DiskEntry& entry : index_.entries_of(d.volume)) {
      const auto raw = read_raw(entry);
      if (!raw.ok()) continue;
      const auto to = stage(entry, kCopied);
      std::ranges::copy(raw.value(), to.begin());
    }
    append_batch();
    if (broken_) return *broken_;
    remove_volume(d.volume);
    if (broken_) return *broken_;
  }
  return save(true);
}

}  // namespace quire
