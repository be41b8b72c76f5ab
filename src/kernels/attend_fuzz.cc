// Random shapes, windows, chunks and plans from bytes: every instruction set gives the reference's
// bits, and no NaN of an unused slot gets through.
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/attend_testing.h"

namespace quire {
namespace {

// Bytes as small numbers; zeros when they run out.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  std::uint32_t below(std::uint32_t n) { return at_ == end_ ? 0 : *at_++ % n; }
  bool empty() const { return at_ == end_; }

 private:
  const std::uint8_t *at_, *end_;
};

void check_same(const std::vector<std::vector<float>>& a,
                const std::vector<std::vector<float>>& b) {
  for (std::size_t s = 0; s < a.size(); ++s) {
    for (const float x : a[s]) CHECK(!std::isnan(x));
    CHECK(std::memcmp(a[s].data(), b[s].data(), a[s].size() * sizeof(float)) == 0);
  }
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  Choices choose(data, size);
  AttendCase c{.rows = static_cast<RowType>(choose.below(3)),
               .kv_heads = 1 + choose.below(2),
               .heads_per_kv = 1 + choose.below(8),
               .head_dim = 16 * (1 + choose.below(6)),
               .tokens_per_block = 16u << choose.below(3),
               .window = choose.below(2) * (1 + choose.below(150)),
               .sequences = {},
               .seed = 1 + choose.below(255)};
  constexpr float kSpreads[] = {1, 0.01f, 5, 1000};
  c.spread = kSpreads[choose.below(4)];
  const std::uint32_t chunk = 1 + choose.below(40);
  const auto tasks = static_cast<AttendWorld::Tasks>(choose.below(4));
  const bool backwards = choose.below(2) == 1;
  do {  // the work is bounded: the reference is slow
    const std::uint32_t far = choose.below(5) == 4 ? 480 : 0;
    c.sequences.push_back({far + choose.below(140), 1 + choose.below(far != 0 ? 3 : 12)});
  } while (!choose.empty() && c.sequences.size() < 3);
  if (c.rows != RowType::f32 && choose.below(2) == 1) c.arithmetic = AttendArithmetic::narrow;
  if (c.window == 0 && choose.below(2) == 1) {
    constexpr double kKeep[] = {0, 0.1, 0.5, 1};
    c.keep = kKeep[choose.below(4)];
    for (const auto& [history, queries] : c.sequences)
      c.compacted.push_back(choose.below(history / c.tokens_per_block + 1) * c.tokens_per_block);
  }
  if (c.head_dim % 32 == 0 && choose.below(3) == 1) c.rotated = 16 * (1 + choose.below(3));
  if (c.compacted.empty() && choose.below(2) == 1)
    c.shared = c.sequences[0].first / c.tokens_per_block * c.tokens_per_block;
  AttendWorld world(c);
  const auto wanted = world.run(Isa::scalar, 1, AttendWorld::Tasks::whole);
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::bf16})
    if (cpu_has(isa)) check_same(wanted, world.run(isa, chunk, tasks, backwards, c.seed));
  return 0;
}
