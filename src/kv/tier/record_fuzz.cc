// Bytes from outside: whatever is accepted must be what encode_record would have written. Half of
// the runs repair the head's checksum first, so that the fields behind it are reached; a quarter
// reads as a place with a seal does, where nothing that a stranger made is accepted.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kv/tier/record.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool repair = data[0] & 1, sealed = (data[0] & 6) == 6, erased = (data[0] & 24) == 24;
  std::vector<std::byte> bytes(size - 1);
  std::copy(data + 1, data + size, reinterpret_cast<std::uint8_t*>(bytes.data()));
  if (const std::size_t head = record_claim(bytes); repair && head != 0 && head <= bytes.size()) {
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(bytes.data(), head - 16));
    std::memcpy(bytes.data() + head - 16, sum.digest, 16);
  }
  static const Seal seal(DeploymentSecret::random(), "tenant");
  if (sealed) {
    CHECK(!read_record(bytes, &seal).ok());
    return 0;
  }
  if (erased && bytes.size() >= 4) {
    const bool whole = read_record(bytes).ok();
    CHECK(mark_erased(bytes) || !whole);
    CHECK(!read_record(bytes).ok());
    CHECK(!whole || read_erased(bytes).ok());
    return 0;
  }
  const auto view = read_record(bytes);
  if (!view.ok()) return 0;
  const RecordView& v = view.value();
  CHECK(v.head_bytes <= bytes.size() && v.head_bytes == record_head_bytes(v.head));
  CHECK(v.record_bytes == record_bytes(v.head));
  if (v.record_bytes > bytes.size()) return 0;
  std::vector<std::vector<std::byte>> segments;
  std::vector<std::span<const std::byte>> spans;
  for (std::uint32_t i = 0; i < v.head.segments.size(); ++i) {
    auto& to = segments.emplace_back(v.head.segments[i].bytes);
    if (!v.read_segment(i, std::span(bytes).subspan(v.segment_at[i], to.size()), to)) return 0;
  }
  for (const auto& s : segments) spans.emplace_back(s);
  std::vector<std::byte> again(v.record_bytes);
  encode_record(v.head, spans, again);
  CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
  return 0;
}
