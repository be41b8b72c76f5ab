// Pages of any bytes, shapes and row counts from the input: every instruction set gives the
// reference's bits for scores, sums and sealing.
#include <vector>

#include "base/check.h"
#include "kernels/encoded_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  if (size < 6) return 0;
  const Codec& c = *codecs()[data[0] % codecs().size()];
  const Side side = data[1] % 2 ? Side::values : Side::keys;
  constexpr std::uint32_t kDims[] = {64, 32, 128, 96, 16}, kTokens[] = {32, 16, 64, 4};
  const Rows rows{kTokens[data[2] % 4], kDims[data[3] % 5]};
  if (!check_rows(c, rows).ok()) return 0;
  const std::uint32_t n = 1 + data[4] % 7;
  const std::uint32_t count = std::min(1 + data[5] % 4u, kEncodedUnit / rows.tokens);
  data += 6, size -= 6;

  EncodedPages pages(c, side, rows, count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto bytes = fill<std::byte>(data, size, pages.part.page_bytes);
    std::memcpy(pages.page(i), bytes.data(), bytes.size());
  }
  // Queries and weights are such as attention has: finite, and weights within [0, 1].
  std::vector<float> in(std::size_t{n} * (side == Side::keys ? rows.dim : kEncodedUnit));
  const auto choices = fill<std::int16_t>(data, size, in.size());
  for (std::size_t i = 0; i < in.size(); ++i)
    in[i] = side == Side::keys ? static_cast<float>(choices[i]) / 64
                               : static_cast<float>(choices[i] & 0x7fff) / 32768;
  const auto run = [&](Isa isa) {
    return side == Side::keys ? run_scores(isa, pages, in, n) : run_values(isa, pages, in, n);
  };
  const std::vector<float> wanted = run(Isa::scalar);
  const auto exact = fill<std::uint16_t>(data, size, std::size_t{rows.tokens} * rows.dim);
  const auto* exact_bytes = reinterpret_cast<const std::byte*>(exact.data());
  encoded_kernels(Isa::scalar).seal(pages.part, exact_bytes, pages.page(0));
  const std::vector<std::byte> sealed(pages.page(0), pages.page(0) + pages.part.page_bytes);
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::vnni}) {
    if (!cpu_has(isa)) continue;
    encoded_kernels(isa).seal(pages.part, exact_bytes, pages.page(0));
    CHECK(std::equal(sealed.begin(), sealed.end(), pages.page(0)));
    const auto bytes = fill<std::byte>(data, size, pages.part.page_bytes);
    std::memcpy(pages.page(0), bytes.data(), bytes.size());
    CHECK(same_floats(wanted, run(isa)));
  }
  return 0;
}
