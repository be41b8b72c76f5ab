// Encoded pages against pages of f16, by the kernels of encoded.h: one layer's scores, softmax-like
// weights and value sums for three query heads, as decode reads them, and sealing.
//
// Each measurement alternates slices of f16 and of the codec in the same run and keeps the fastest
// of both: "of_f16" is how many times faster. Pages lie as in a cache of 30 layers: out of the
// caches when they come round again.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/thread_pool.h"
#include "format/families.h"
#include "kernels/encoded_testing.h"

namespace quire {
namespace {

constexpr std::uint32_t kSlots = 7040, kHeads = 3, kLayers = 30, kDim = 64;
constexpr Rows kRows{32, kDim};

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};

// Pages of one codec: [block][layer][KV head], keys before values.
class Store {
 public:
  explicit Store(const Codec& c)
      : keys_(encoded_part(c, Side::keys, kRows)), values_(encoded_part(c, Side::values, kRows)) {
    constexpr std::size_t kHuge = 2 << 20;
    const std::size_t bytes = (kSlots / 32 * block_bytes() + kHuge - 1) / kHuge * kHuge;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHuge, bytes)));
    madvise(memory_.get(), bytes, MADV_HUGEPAGE);
    EncodedPages k(c, Side::keys, kRows, 1), v(c, Side::values, kRows, 1);
    Gaussian random(1);
    k.encode(random.rows(kRows));
    v.encode(random.rows(kRows));
    for (std::size_t at = 0; at < kSlots / 32 * block_bytes(); at += page_bytes()) {
      std::memcpy(memory_.get() + at, k.page(0), keys_.page_bytes);
      std::memcpy(memory_.get() + at + keys_.page_bytes, v.page(0), values_.page_bytes);
    }
  }
  std::size_t page_bytes() const { return keys_.page_bytes + values_.page_bytes; }
  std::size_t block_bytes() const { return page_bytes() * kLayers * kHeads; }
  std::size_t layer_bytes() const { return kSlots / 32 * kHeads * page_bytes(); }

  // Slots [begin, end) of one head of one layer.
  void attend(const EncodedKernels& e, std::uint32_t layer, std::uint32_t head, std::uint32_t begin,
              std::uint32_t end, const float* queries, std::byte* prepared, float* out) const {
    e.prepare(keys_, queries, kDim, kHeads, prepared);
    constexpr std::uint32_t kPages = kEncodedUnit / 32;
    float weights[kHeads * kEncodedUnit];
    const float keep[kHeads] = {1, 1, 1}, take[kHeads] = {1, 1, 1};
    const std::byte* lane = memory_.get() + (layer * kHeads + head) * page_bytes();
    for (std::uint32_t slot = begin; slot < end; slot += kEncodedUnit) {
      EncodedUnit k{}, v{};
      k.page_count = v.page_count = kPages;
      k.next_count = v.next_count = slot + kEncodedUnit < end ? kPages : 0;
      k.next_bytes = keys_.page_bytes, v.next_bytes = values_.page_bytes;
      for (std::uint32_t i = 0; i < kPages; ++i) {
        k.pages[i] = lane + (slot / 32 + i) * block_bytes();
        k.next[i] = k.pages[i] + kPages * block_bytes();
        v.pages[i] = k.pages[i] + keys_.page_bytes;
        v.next[i] = k.next[i] + keys_.page_bytes;
      }
      e.scores(keys_, k, prepared, kHeads, weights);
      for (float& w : weights) w *= w;  // stands for the softmax
      e.add_values(values_, v, weights, kHeads, keep, take, out);
    }
    e.finish(values_, kHeads, out);
  }

  // One layer by all threads; seconds.
  double seconds(ThreadPool& pool, const EncodedKernels& e) {
    layer_ = (layer_ + 1) % kLayers;
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](ThreadPool::Worker worker) {
      alignas(64) std::byte prepared[kHeads * 1024];
      float queries[kHeads * kDim], out[kHeads * kDim] = {};
      for (std::uint32_t i = 0; i < kHeads * kDim; ++i) queries[i] = static_cast<float>(i % 7) - 3;
      const std::uint32_t part = kSlots / kEncodedUnit / worker.count * kEncodedUnit;
      const std::uint32_t begin = worker.index * part;
      for (std::uint32_t head = 0; head < kHeads; ++head)
        attend(e, layer_, head, begin, worker.index + 1 == worker.count ? kSlots : begin + part,
               queries, prepared, out);
      benchmark::DoNotOptimize(out);
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  EncodedPart keys_, values_;
  std::unique_ptr<std::byte, Free> memory_;
  std::uint32_t layer_ = 0;
};

void decode(benchmark::State& state, const Codec* c) {
  const EncodedKernels& e = encoded_kernels(best_isa());
  Store store(*c), plain(kF16);
  ThreadPool pool(static_cast<std::uint32_t>(state.range(0)));
  double best = 1e9, best_plain = 1e9;
  for (auto _ : state) {
    best_plain = std::min(best_plain, plain.seconds(pool, e));
    best = std::min(best, store.seconds(pool, e));
  }
  state.counters["GB/s"] = static_cast<double>(store.layer_bytes()) / best / 1e9;
  state.counters["Mslots/s"] = kSlots * kHeads / best / 1e6;
  state.counters["f16_GB/s"] = static_cast<double>(plain.layer_bytes()) / best_plain / 1e9;
  state.counters["of_f16"] = best_plain / best;
}

// One page of keys and one of values; what a token costs in all 90 lanes of SmolLM2.
void seal(benchmark::State& state, const Codec* c) {
  const EncodedKernels& e = encoded_kernels(static_cast<Isa>(state.range(0)));
  EncodedPages k(*c, Side::keys, kRows, 1), v(*c, Side::values, kRows, 1);
  Gaussian random(1);
  std::vector<std::uint16_t> rows;
  for (const float x : random.rows(kRows)) rows.push_back(f32_to_f16(x));
  double best = 1e9;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    e.seal(k.part, reinterpret_cast<const std::byte*>(rows.data()), k.page(0));
    e.seal(v.part, reinterpret_cast<const std::byte*>(rows.data()), v.page(0));
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  state.counters["us/token"] = best * 1e6 / 32 * kLayers * kHeads;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  for (const Codec* c : codecs()) {
    if (c->research) continue;
    const std::string name(c->name);
    benchmark::RegisterBenchmark(("decode/" + name).c_str(), decode, c)
        ->ArgName("threads")
        ->Arg(1)
        ->Arg(2)
        ->Iterations(150)
        ->Unit(benchmark::kMicrosecond);
    if (c->rows == RowType::f16)
      benchmark::RegisterBenchmark(("seal/" + name).c_str(), seal, c)
          ->ArgName("isa")
          ->Arg(static_cast<long>(Isa::scalar))
          ->Arg(static_cast<long>(best_isa()))
          ->Iterations(50)
          ->Unit(benchmark::kMicrosecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
