// Bytes from outside: whatever is accepted must be what encode_record would have written. Half of
// the runs repair the head's checksum first, so that the fields behind it are reached.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kv/tier/record.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool repair = data[0] & 1;
  std::vector<std::byte> bytes(size - 1);
  std::copy(data + 1, data + size, reinterpret_cast<std::uint8_t*>(bytes.data()));
  std::uint32_t head_bytes = 0;
  if (repair && bytes.size() >= 16) {
    std::memcpy(&head_bytes, bytes.data() + 8, sizeof head_bytes);
    if (head_bytes >= 16 && head_bytes <= bytes.size()) {
      XXH128_canonical_t sum;
      XXH128_canonicalFromHash(&sum, XXH3_128bits(bytes.data(), head_bytes - 16));
      std::memcpy(bytes.data() + head_bytes - 16, sum.digest, 16);
    }
  }
  const auto view = read_record(bytes);
  if (!view.ok()) return 0;
  const RecordView& v = view.value();
  CHECK(v.head_bytes <= bytes.size() && v.head_bytes == record_head_bytes(v.head));
  if (v.record_bytes() > bytes.size()) return 0;
  bool whole = true;
  for (std::uint32_t layer = 0; layer < v.head.layers; ++layer)
    whole &=
        v.segment_ok(layer, std::span(bytes).subspan(v.segment_at(layer), v.head.segment_bytes));
  if (!whole) return 0;
  const auto again = encode_record(v.head, std::span(bytes).subspan(v.head_bytes));
  CHECK(again.size() == v.record_bytes());
  CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
  return 0;
}
