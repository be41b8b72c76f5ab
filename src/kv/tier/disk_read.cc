// Reading, verifying and erasing records of a DiskStore.
#include <algorithm>
#include <cerrno>

#include "kv/tier/disk_store.h"

namespace quire {
namespace {

constexpr std::uint64_t kStagingBytes = 32 << 20;     // read ahead of verification
constexpr std::uint64_t kReadWholeBytes = 128 << 10;  // smaller records are read in one piece
constexpr std::size_t kHeadsMax = 4096;               // about a kilobyte each
constexpr std::size_t kGroupsAtOnce = 200;            // as many files may be open

struct StagedRange {
  std::uint64_t at = 0, bytes = 0;  // in the file, whole pages
};

StagedRange pages_of(std::uint64_t at, std::uint64_t bytes) {
  const std::uint64_t first = align_down(at);
  return {first, align_up(at + bytes) - first};
}

}  // namespace

// Neighbouring reads of one record. They are served from one staged range if most of the record is
// wanted; otherwise the head is read first, and then the segments.
struct DiskStore::ReadGroup {
  const RecordIdentity* of = nullptr;
  std::size_t first = 0, end = 0;  // of the batch
  DiskEntry entry = {};
  bool whole = false;
  FileId file = {};
  StagedRange range = {};
  std::span<std::byte> staged = {};
  std::vector<std::byte> head = {};  // what `view` points into
  std::optional<RecordView> view = {};
};

void DiskStore::read(std::span<const SegmentRead> reads,
                     const std::function<void(ReadEnd)>& ended) {
  std::vector<ReadGroup> groups;
  std::uint64_t staged = 0;
  for (std::size_t i = 0; i < reads.size();) {
    ReadGroup group{.of = reads[i].of.get(), .first = i};
    std::uint64_t wanted = 0;
    for (; i < reads.size() && reads[i].of->name == group.of->name; ++i)
      wanted += reads[i].to.size();
    group.end = i;
    DiskEntry* const entry = index_.find(group.of->name);
    if (entry == nullptr) {
      counts_.absent += 1;
      end_group(group, TierOutcome::absent, ended);
      continue;
    }
    if (reads[group.first].segment == 0) touch(*entry);  // read layer by layer, it is used once
    group.entry = *entry;
    group.whole = entry->bytes() <= kReadWholeBytes || wanted * 2 >= entry->bytes();
    group.range = pages_of(entry->first_byte(), group.whole ? entry->bytes() : entry->head_bytes());
    const std::uint64_t needs =
        group.range.bytes + (group.whole ? 0 : wanted + (group.end - group.first) * 2 * kFileAlign);
    if (!groups.empty() && (staged + needs > kStagingBytes || groups.size() == kGroupsAtOnce)) {
      read_window(reads, groups, ended);
      settle_lost();
      groups.clear();
      staged = 0;
    }
    staged += needs;
    groups.push_back(std::move(group));
  }
  if (!groups.empty()) read_window(reads, groups, ended);
  settle_lost();
}

void DiskStore::end_group(const ReadGroup& group, TierOutcome outcome,
                          const std::function<void(ReadEnd)>& ended) {
  for (std::size_t i = group.first; i < group.end; ++i)
    ended({static_cast<std::uint32_t>(i), outcome});
}

// Takes a record that could not be read out of the index. What needs the disk is done later: other
// reads are under way.
TierOutcome DiskStore::lose(const ReadGroup& group, int error, TierOutcome outcome) {
  if (contains(group.of->name)) {
    forget(group.of->name);
    lost_.push_back({group.entry, outcome, error});
  }
  return outcome;
}

void DiskStore::settle_lost() {
  for (const Lost& lost : std::exchange(lost_, {})) {
    if (lost.outcome == TierOutcome::absent) {
      counts_.absent += 1;
    } else if (lost.outcome == TierOutcome::corrupt) {
      counts_.corrupt += 1;
      erase_in_place(lost.entry);
    } else {
      counts_.failed += 1;
      if (!folder_.read_only() && !folder_.probe().ok())
        fail({Code::unavailable,
              folder_.volume_path(lost.entry.volume) + ": cannot read: " + errno_text(lost.error)});
    }
  }
}

TierOutcome DiskStore::read_head(ReadGroup& group, std::span<const std::byte> bytes, int error) {
  if (error != 0) return lose(group, error, TierOutcome::failed);
  auto view = read_record(bytes);
  if (view.ok() && view.value().head.identity == *group.of &&
      view.value().record_bytes <= group.entry.bytes()) {
    group.view = std::move(view.value());
    return TierOutcome::ok;
  }
  // An older index may point to what was erased since.
  const bool erased = !view.ok() && view.error().code == Code::not_found;
  return lose(group, 0, erased ? TierOutcome::absent : TierOutcome::corrupt);
}

// What is staged of a segment; nothing if the record has no such segment, or it is not all there.
std::span<const std::byte> DiskStore::staged_segment(const ReadGroup& group, std::uint32_t segment,
                                                     std::uint64_t staged_at,
                                                     std::span<const std::byte> staged) {
  const std::vector<RecordSegment>& segments = group.view->head.segments;
  if (segment >= segments.size()) return {};
  const std::uint64_t at = group.entry.first_byte() + group.view->segment_at[segment] - staged_at;
  if (at > staged.size() || segments[segment].bytes > staged.size() - at) return {};
  return staged.subspan(at, segments[segment].bytes);
}

TierOutcome DiskStore::read_segment(const ReadGroup& group, const SegmentRead& read,
                                    std::span<const std::byte> stored, int error) {
  if (error != 0) return lose(group, error, TierOutcome::failed);
  if (!group.view->read_segment(read.segment, stored, read.to))
    return lose(group, 0, TierOutcome::corrupt);
  counts_.read_segments += 1;
  counts_.read_bytes += stored.size();
  return TierOutcome::ok;
}

// Records that are wanted whole, and heads of the others, in one batch; then read_parts().
void DiskStore::read_window(std::span<const SegmentRead> reads, std::span<ReadGroup> groups,
                            const std::function<void(ReadEnd)>& ended) {
  trim_files();
  std::uint64_t total = 0;
  for (const ReadGroup& g : groups) total += g.range.bytes;
  staging_.grow(std::max(total, kStagingBytes));
  std::vector<IoRequest> requests;
  std::vector<ReadGroup*> owners, parts;
  const auto head_known = [&](ReadGroup& g, TierOutcome outcome) {
    if (outcome == TierOutcome::ok)
      parts.push_back(&g);
    else
      end_group(g, outcome, ended);
  };
  std::uint64_t used = 0;
  for (ReadGroup& g : groups) {
    const auto file = volume_file(g.entry.volume);
    if (!file.ok()) {
      end_group(g, lose(g, EIO, TierOutcome::failed), ended);
      continue;
    }
    g.file = file.value();
    if (const auto known = heads_.find(g.of->name); !g.whole && known != heads_.end()) {
      g.head = known->second;
      head_known(g, read_head(g, g.head, 0));
      continue;
    }
    g.staged = staging_.span().subspan(used, g.range.bytes);
    used += g.range.bytes;
    requests.push_back({.file = g.file, .at = g.range.at, .bytes = g.staged});
    owners.push_back(&g);
  }
  transfer(files_, requests, [&](std::size_t k) {
    ReadGroup& g = *owners[k];
    const int error = requests[k].error;
    const auto bytes = std::span<const std::byte>(g.staged).first(requests[k].done);
    const std::uint64_t skip = g.entry.first_byte() - g.range.at;
    const auto record = bytes.subspan(std::min<std::uint64_t>(skip, bytes.size()));
    if (!g.whole) {
      const auto head = record.first(std::min<std::uint64_t>(record.size(), g.entry.head_bytes()));
      g.head.assign(head.begin(), head.end());
      const TierOutcome outcome = read_head(g, g.head, error);
      if (heads_.size() >= kHeadsMax) heads_.clear();
      if (outcome == TierOutcome::ok) heads_[g.of->name] = g.head;
      return head_known(g, outcome);
    }
    if (const TierOutcome outcome = read_head(g, record, error); outcome != TierOutcome::ok)
      return end_group(g, outcome, ended);
    for (std::size_t i = g.first; i < g.end; ++i) {
      const auto stored = staged_segment(g, reads[i].segment, g.range.at, bytes);
      ended({static_cast<std::uint32_t>(i), read_segment(g, reads[i], stored, error)});
    }
  });
  read_parts(reads, parts, ended);
}

// Single segments of records whose heads are known.
void DiskStore::read_parts(std::span<const SegmentRead> reads, std::span<ReadGroup* const> groups,
                           const std::function<void(ReadEnd)>& ended) {
  struct Part {
    ReadGroup* group;
    std::size_t read;
    StagedRange range;
  };
  std::vector<Part> parts;
  std::uint64_t needed = 0;
  for (ReadGroup* g : groups)
    for (std::size_t i = g->first; i < g->end; ++i) {
      const std::uint32_t s = reads[i].segment;
      const std::vector<RecordSegment>& segments = g->view->head.segments;
      if (s >= segments.size() || segments[s].bytes != reads[i].to.size()) {
        ended({static_cast<std::uint32_t>(i), read_segment(*g, reads[i], {}, 0)});
        continue;
      }
      parts.push_back(
          {g, i, pages_of(g->entry.first_byte() + g->view->segment_at[s], segments[s].bytes)});
      needed += parts.back().range.bytes;
    }
  staging_.grow(needed);
  std::vector<IoRequest> requests;
  std::uint64_t used = 0;
  for (const Part& p : parts) {
    requests.push_back({.file = p.group->file,
                        .at = p.range.at,
                        .bytes = staging_.span().subspan(used, p.range.bytes)});
    used += p.range.bytes;
  }
  transfer(files_, requests, [&](std::size_t k) {
    const Part& p = parts[k];
    const auto bytes = std::span<const std::byte>(requests[k].bytes).first(requests[k].done);
    const auto stored = staged_segment(*p.group, reads[p.read].segment, p.range.at, bytes);
    ended({static_cast<std::uint32_t>(p.read),
           read_segment(*p.group, reads[p.read], stored, requests[k].error)});
  });
}

// A record as it is stored, if its head is whole.
Result<std::vector<std::byte>> DiskStore::read_raw(const DiskEntry& entry) {
  TRY(const FileId file, volume_file(entry.volume));
  const StagedRange range = pages_of(entry.first_byte(), entry.bytes());
  staging_.grow(range.bytes);
  IoRequest request{.file = file, .at = range.at, .bytes = staging_.span().first(range.bytes)};
  transfer(files_, {&request, 1}, [](std::size_t) {});
  if (request.error != 0 || request.done != range.bytes)
    return Error{Code::unavailable, "a record cannot be read"};
  const auto stored = staging_.span().subspan(entry.first_byte() - range.at, entry.bytes());
  TRY(const RecordView view, read_record(stored));
  if (view.head.identity.name != entry.name || view.record_bytes > stored.size())
    return Error{Code::corrupt, "another record lies here"};
  return std::vector<std::byte>(stored.begin(), stored.end());
}

void DiskStore::erase(std::span<const RecordName> names) {
  for (const RecordName& name : names) {
    const DiskEntry* const found = index_.find(name);
    if (found == nullptr) continue;
    const DiskEntry entry = *found;
    forget(name);
    erase_in_place(entry);
  }
}

// Only the first four bytes of the page change, so a torn write leaves the record or erases it.
void DiskStore::erase_in_place(const DiskEntry& entry) {
  if (folder_.read_only() || broken_) return;
  const auto file = volume_file(entry.volume);
  if (!file.ok()) return fail(file.error());
  AlignedBuffer page(kFileAlign);
  IoRequest request{
      .file = file.value(), .at = align_down(entry.first_byte()), .bytes = page.span()};
  transfer(files_, {&request, 1}, [](std::size_t) {});
  if (request.error != 0 || request.done != kFileAlign) return;
  const auto record = page.span().subspan(entry.first_byte() - request.at);
  if (!mark_erased(record)) return;  // its head is not there
  const Status written = write_pages(entry.volume, request.at, page.span());
  if (!written.ok()) fail(written.error());
}

}  // namespace quire
