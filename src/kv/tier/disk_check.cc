// `quire kv fsck`: every byte of every volume is looked at.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kv/tier/disk_store.h"

namespace quire {
namespace {

// Whether all segments of a record are as they were written, and the bytes after it zero.
bool record_whole(VolumeReader& reader, std::uint64_t at, const RecordView& record) {
  // The view points into the reader's window, so the record is read again as a whole.
  const std::uint64_t padded = align_up(record.record_bytes, kDiskUnit);
  const auto bytes = reader.bytes(at, padded);
  if (bytes.size() != padded) return false;
  auto view = read_record(bytes);
  if (!view.ok() && view.error().code == Code::not_found) view = read_erased(bytes);
  if (!view.ok()) return false;
  for (std::uint32_t i = 0; i < view.value().head.segments.size(); ++i)
    if (!view.value().segment_ok(
            i, bytes.subspan(view.value().segment_at[i], view.value().head.segments[i].bytes)))
      return false;
  return std::ranges::all_of(bytes.subspan(record.record_bytes),
                             [](std::byte b) { return b == std::byte{}; });
}

}  // namespace

std::vector<VolumeDamage> DiskStore::check() {
  std::vector<VolumeDamage> damaged;
  for (const auto& [number, volume] : volumes_) {
    VolumeDamage damage{number, {}};
    const auto problem = [&](std::string text) {
      if (damage.problems.size() < 20) damage.problems.push_back(std::move(text));
    };
    std::set<std::pair<std::uint32_t, RecordName>> whole;  // by place
    std::vector<std::pair<std::uint32_t, RecordName>> erased;
    const auto file = volume_file(number);
    if (file.ok()) {
      VolumeReader reader(files_, file.value(), volume.bytes);
      if (!volume_head_ok(number, reader.bytes(0, kVolumeHeadBytes)))
        problem("its first page is damaged");
      if (volume.bytes % kFileAlign != 0) problem("it was cut off");
      const auto footer = read_footer(reader, number);
      if (!footer.ok() && (volume.finished || footer.error().code == Code::corrupt))
        problem("its footer is damaged");
      const std::uint64_t end = footer.ok() ? footer.value().volumes[0].bytes : volume.bytes;
      const VolumeVisitor visitor{
          .record =
              [&](std::uint64_t at, const RecordView& record, bool is_erased) {
                const std::pair place(static_cast<std::uint32_t>(at / kDiskUnit),
                                      record.head.identity.name);
                const RecordView copy = record;  // record_whole moves the window
                if (!record_whole(reader, at, copy))
                  problem(fmt::format("record {} at {} is damaged", place.second.hex(), at));
                else if (is_erased)
                  erased.push_back(place);
                else
                  whole.insert(place);
              },
          .gap =
              [&](std::uint64_t at, std::uint64_t bytes, bool zero) {
                if (!zero) problem(fmt::format("{} bytes at {} belong to no record", bytes, at));
              }};
      walk_volume(reader, kVolumeHeadBytes, end, visitor);
      if (reader.error() != 0) problem("cannot be read: " + errno_text(reader.error()));
      if (footer.ok())
        for (const DiskEntry& e : footer.value().entries)
          if (const std::pair place(e.at, e.name);
              !whole.contains(place) && std::ranges::find(erased, place) == erased.end())
            problem(fmt::format("record {} at {} is missing", e.name.hex(), e.first_byte()));
    } else {
      problem(file.error().message);
    }
    for (const DiskEntry& e : index_.entries_of(number))
      if (!whole.contains({e.at, e.name})) forget(e.name);
    close_file(volumes_[number]);
    if (!damage.problems.empty()) damaged.push_back(std::move(damage));
  }
  return damaged;
}

}  // namespace quire
