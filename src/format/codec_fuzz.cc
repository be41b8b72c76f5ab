// Any bytes decode to something, and any floats encode to a page that decodes to finite numbers and
// whose slots can be moved.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "format/testing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  if (size < 3) return 0;
  const Codec& c = *codecs()[data[0] % codecs().size()];
  const Side side = data[1] % 2 ? Side::values : Side::keys;
  constexpr std::uint32_t kDims[] = {32, 64, 96, 128}, kTokens[] = {4, 16, 32};
  const Rows rows{kTokens[data[2] / 4 % 3], kDims[data[2] % 4]};
  if (!check_rows(c, rows).ok()) return 0;
  data += 3, size -= 3;

  const std::size_t bytes = codec_bytes(c, side, rows);
  const std::size_t count = std::size_t{rows.tokens} * rows.dim;
  std::vector<float> decoded(count);
  c.decode(c, side, rows, fill<std::byte>(data, size, bytes).data(), decoded.data());

  for (const std::vector<float>& x : {decoded, fill<float>(data, size, count)}) {
    std::vector<std::byte> page(bytes), other(bytes);
    c.encode(c, side, rows, x.data(), page.data());
    std::vector<float> y(count);
    c.decode(c, side, rows, page.data(), y.data());
    if (c.exact) continue;
    for (const float v : y) CHECK(std::isfinite(v));
    if (!slots_stand_alone(c, side, rows)) continue;
    for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
      copy_slot(c, side, rows, page.data(), slot, other.data(), slot);
    CHECK(page == other);
  }
  return 0;
}
