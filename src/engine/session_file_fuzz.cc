// Bytes from outside as a session file: whatever is accepted is consistent, and is written again to
// a head that says the same. Half of the runs repair the digest first, so that the fields behind it
// are reached.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "engine/session_file.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  std::copy(data + 1, data + size, reinterpret_cast<std::uint8_t*>(bytes.data()));
  if (data[0] & 1) {  // the rest is a header; what stands before it is made
    static constexpr char kMagic[] = {'K', 'V', 'C', '1', 1, 0, 0, 0};
    const std::uint64_t header = bytes.size(), whole = (104 + header + 4095) / 4096 * 4096;
    std::vector<std::byte> head(whole);
    std::memcpy(head.data(), kMagic, sizeof kMagic);
    std::memcpy(head.data() + 8, &header, sizeof header);
    std::memcpy(head.data() + 16, &whole, sizeof whole);
    std::copy(bytes.begin(), bytes.end(), head.begin() + 104);
    std::vector<std::byte> covered(head.begin(), head.begin() + 72);
    covered.insert(covered.end(), bytes.begin(), bytes.end());
    const Digest digest = sha256(covered);
    std::memcpy(head.data() + 72, digest.data(), digest.size());
    bytes = std::move(head);
  }
  static const Seal seal = session_seal(DeploymentSecret::random(), "tenant");
  const auto claimed = session_head_bytes(bytes);
  if (!claimed.ok() || claimed.value() > bytes.size()) return 0;
  const auto head = std::span(bytes).first(claimed.value());
  const auto read = read_session_head(head, bytes.size());
  if (!read.ok()) return 0;
  CHECK(!sealed_by(head, seal));
  const SessionHead& h = read.value();
  CHECK(h.file_bytes == bytes.size() && h.head_bytes == claimed.value());
  CHECK(h.file.keys.size() * h.file.model.tokens_per_block <= h.file.tokens.size());
  for (std::size_t i = 0; i < h.at.size(); ++i) {
    CHECK(h.at[i] + h.file.blocks[i].bytes <= bytes.size());
    (void)session_block_ok(h.file.blocks[i],
                           std::span(bytes).subspan(h.at[i], h.file.blocks[i].bytes));
  }
  const std::vector<std::byte> again = encode_session_head(h.file, seal);
  const std::uint64_t size_again = again.size() + (h.file_bytes - h.head_bytes);
  const auto twice = read_session_head(again, size_again);
  CHECK(twice.ok() && twice.value().file.tokens == h.file.tokens &&
        twice.value().file.blocks == h.file.blocks && sealed_by(again, seal));
  return 0;
}
