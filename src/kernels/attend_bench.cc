// Attention beside the two limits it runs into: reading memory (decode) and multiplying (prefill).
//
// Each measurement alternates slices of a fraction of a millisecond: one of the limit (reading as
// many bytes that are not in cache, or multiplying in registers), one of attention (a layer). The
// rates are those of the fastest slices, so that a busy machine does not hide them, and "of_limit"
// is their ratio. The cache is like SmolLM2's: 3 KV heads, blocks of 32 tokens of all layers, so a
// layer's pages have left the caches when it comes round again.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/attend.h"
#include "kernels/kv_run.h"

namespace quire {
namespace {

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, Free>;

Bytes huge_bytes(std::size_t n) {
  constexpr std::size_t kHuge = 2 << 20;
  n = (n + kHuge - 1) / kHuge * kHuge;
  Bytes bytes(static_cast<std::byte*>(std::aligned_alloc(kHuge, n)));
  madvise(bytes.get(), n, MADV_HUGEPAGE);
  std::memset(bytes.get(), 0, n);
  return bytes;
}

using Clock = std::chrono::steady_clock;

// The seconds from the first thread's start of f(worker) to the last one's end.
template <class F>
double slice_seconds(ThreadPool& pool, F f) {
  std::vector<Clock::time_point> starts(pool.size()), ends(pool.size());
  pool.run([&](ThreadPool::Worker worker) {
    worker.barrier();
    starts[worker.index] = Clock::now();
    f(worker);
    ends[worker.index] = Clock::now();
  });
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) -
                                       *std::min_element(starts.begin(), starts.end()))
      .count();
}

// Reads memory that has left the caches.
class Reader {
 public:
  // The next `bytes`, all threads together.
  double seconds(ThreadPool& pool, std::size_t bytes) {
    if (at_ + bytes > kBytes) at_ = 0;
    const std::byte* from = memory_.get() + std::exchange(at_, at_ + bytes);
    return slice_seconds(pool, [&](ThreadPool::Worker worker) {
      const std::size_t part = bytes / 64 / worker.count * 8;
      const auto* words = reinterpret_cast<const std::uint64_t*>(from) + worker.index * part;
      std::uint64_t sums[8] = {};
      for (std::size_t i = 0; i < part; i += 8)
        for (std::size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
      benchmark::DoNotOptimize(sums);
    });
  }

 private:
  static constexpr std::size_t kBytes = 192 << 20;
  const Bytes memory_ = huge_bytes(kBytes);
  std::size_t at_ = 0;
};

__attribute__((target("avx512f"))) float multiply_add_512(std::uint64_t rounds) {
  typedef float Vector __attribute__((vector_size(64)));
  Vector acc[16] = {}, by = {};
  by += 0.999f;
  for (std::uint64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (Vector& a : acc) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(a) : "v"(by));
  }
#pragma GCC unroll 16
  for (const Vector& a : acc) by += a;
  return by[0];
}

__attribute__((target("avx2,fma"))) float multiply_add_256(std::uint64_t rounds) {
  typedef float Vector __attribute__((vector_size(32)));
  Vector acc[12] = {}, by = {};
  by += 0.999f;
  for (std::uint64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (Vector& a : acc) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(a) : "x"(by));
  }
#pragma GCC unroll 12
  for (const Vector& a : acc) by += a;
  return by[0];
}

// Multiplies and adds in registers; the rate in flop/s.
double multiply_rate(ThreadPool& pool) {
  constexpr std::uint64_t kRounds = 20000;
  const bool wide = cpu_has(Isa::avx512);
  const double seconds = slice_seconds(pool, [&](ThreadPool::Worker) {
    benchmark::DoNotOptimize(wide ? multiply_add_512(kRounds) : multiply_add_256(kRounds));
  });
  return 2.0 * (wide ? 16 * 16 : 12 * 8) * kRounds * pool.size() / seconds;
}

// A cache of some layers and one sequence of `slots` slots in it.
struct Cache {
  Cache(RowType rows, std::uint32_t kv_heads, std::uint32_t heads, std::uint32_t dim,
        std::uint32_t layer_count, std::uint32_t slots, std::uint32_t rotated = 0)
      : layers(layer_count) {
    const std::size_t element = rows == RowType::f32 ? 4 : 2;
    const std::size_t key_bytes = element * 32 * (rotated != 0 ? rotated : dim),
                      page_bytes = key_bytes + element * 32 * dim;
    const std::uint32_t lanes = layers * (rotated != 0 ? 1 : kv_heads);
    shape = {.query_heads = kv_heads * heads,
             .kv_heads = kv_heads,
             .head_dim = dim,
             .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
             .rows = rows,
             .layer_index = 0,
             .page_bytes = page_bytes,
             .key_bytes = key_bytes,
             .rotated = rotated};
    const std::size_t block_bytes = (lanes * page_bytes + 255) / 256 * 256;
    const std::uint32_t blocks = (slots + 31) / 32;
    arena = huge_bytes(blocks * block_bytes);
    Random random(1);
    for (std::uint32_t b = 0; b < blocks; ++b)
      table.push_back(static_cast<ArenaOffset>(b * (block_bytes / kArenaUnit)));
    for (std::uint32_t b = 0; b < blocks; ++b) std::swap(table[b], table[random.below(blocks)]);
    std::vector<float> row(dim);
    for (std::uint32_t s = 0; s < slots; ++s)
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        if (lane % 16 == 0)
          for (float& x : row) x = static_cast<float>(2 * random.unit() - 1);
        std::byte* page = arena_at(arena.get(), table[s / 32]) + lane * shape.page_bytes;
        attend_kernels(best_isa()).store_key(shape, 32, row.data(), s % 32, page);
        attend_kernels(best_isa()).store_value(shape, 32, row.data(), s % 32, page);
      }
  }
  std::uint32_t layers;
  AttendShape shape;
  Bytes arena;
  std::vector<ArenaOffset> table;
};

// Rows [slots - rows, slots) attend, one layer after another.
class Attention {
 public:
  Attention(Isa isa, const Cache& cache, std::uint32_t slots, std::uint32_t rows,
            std::uint32_t threads)
      : kernels_(attend_kernels(isa)), cache_(cache) {
    sequence_ = {cache.table.data(), 0, rows, slots - rows};
    step_.kv = {cache.arena.get(), &sequence_, 1, 32, 0};
    step_.shape = cache.shape;
    plan_.threads = threads;
    plan_attention(step_.kv, cache.shape, plan_);
    step_.row_stride = std::size_t{cache.shape.query_heads} * query_dim(cache.shape);
    Random random(2);
    queries_.resize(rows * step_.row_stride);
    for (float& q : queries_) q = static_cast<float>(2 * random.unit() - 1);
    out_.resize(queries_.size());
    partials_.resize(plan_.partial_count * partial_floats(cache.shape));
    step_.queries = queries_.data();
    step_.out = out_.data();
    step_.partials = partials_.data();
    for (std::uint32_t i = 0; i < threads; ++i)
      scratch_.push_back(huge_bytes(attend_scratch_bytes(cache.shape)));
  }

  // Seconds of the next layer.
  double seconds(ThreadPool& pool) {
    step_.shape.layer_index = (step_.shape.layer_index + 1) % cache_.layers;
    std::atomic<std::uint32_t> next{0};
    return slice_seconds(pool, [&](ThreadPool::Worker worker) {
      for (std::uint32_t i; (i = next++) < plan_.tasks.size();)
        kernels_.attend(step_, plan_.tasks[i], scratch_[worker.index].get());
      if (plan_.merges.empty()) return;
      worker.barrier();
      for (std::size_t i = worker.index; i < plan_.merges.size(); i += worker.count)
        kernels_.merge(step_, plan_.merges[i]);
    });
  }

 private:
  const AttendKernels& kernels_;
  const Cache& cache_;
  KvSequenceView sequence_;
  AttendStep step_;
  AttendPlan plan_;
  std::vector<float> queries_, out_, partials_;
  std::vector<Bytes> scratch_;
};

constexpr long kAvx2 = static_cast<long>(Isa::avx2), kAvx512 = static_cast<long>(Isa::avx512),
               kBf16Isa = static_cast<long>(Isa::bf16);
constexpr long kF32 = static_cast<long>(RowType::f32), kF16 = static_cast<long>(RowType::f16),
               kBf16 = static_cast<long>(RowType::bf16);

void decode(benchmark::State& state) {
  const auto arg = [&](int i) { return static_cast<std::uint32_t>(state.range(i)); };
  const Isa isa = static_cast<Isa>(arg(0));
  if (!cpu_has(isa)) return state.SkipWithError("this machine has no such instructions");
  state.SetLabel(std::string(isa_name(isa)));
  const std::uint32_t threads = arg(1), dim = arg(4), slots = arg(5);
  const Cache cache(static_cast<RowType>(arg(2)), 3, arg(3), dim, 30 * 64 / dim, slots);
  Attention attention(isa, cache, slots, 1, threads);
  Reader reader;
  ThreadPool pool(threads);
  const std::size_t bytes = std::size_t{3} * slots / 32 * cache.shape.page_bytes;
  double best = 1e9, limit = 1e9;
  for (auto _ : state) {
    limit = std::min(limit, reader.seconds(pool, bytes));
    best = std::min(best, attention.seconds(pool));
  }
  state.counters["GB/s"] = static_cast<double>(bytes) / best / 1e9;
  state.counters["limit"] = static_cast<double>(bytes) / limit / 1e9;
  state.counters["of_limit"] = limit / best;
}
BENCHMARK(decode)
    ->ArgNames({"isa", "threads", "rows", "heads", "dim", "slots"})
    ->Args({kAvx512, 1, kF16, 3, 64, 7000})
    ->Args({kAvx512, 2, kF16, 3, 64, 7000})
    ->Args({kAvx512, 2, kF32, 3, 64, 7000})
    ->Args({kAvx512, 2, kBf16, 3, 64, 7000})
    ->Args({kAvx512, 2, kF16, 1, 64, 7000})
    ->Args({kAvx512, 2, kF16, 4, 128, 7000})
    ->Args({kAvx512, 2, kF16, 4, 256, 7000})
    ->Args({kAvx2, 2, kF16, 3, 64, 7000})
    ->Iterations(600)
    ->Unit(benchmark::kMicrosecond);

// One lane of latent rows (512 + 64) in `parts` parts of the query heads, in the arithmetic of int8
// activations: 8 layers, so that they have left the caches.
void decode_latent(benchmark::State& state) {
  const auto arg = [&](int i) { return static_cast<std::uint32_t>(state.range(i)); };
  const Isa isa = static_cast<Isa>(arg(0));
  if (!cpu_has(isa)) return state.SkipWithError("this machine has no such instructions");
  state.SetLabel(std::string(isa_name(isa)));
  const std::uint32_t threads = arg(1), heads = arg(3), parts = arg(4), slots = arg(5);
  Cache cache(static_cast<RowType>(arg(2)), parts, heads / parts, 512, 8, slots, 64);
  if (cache.shape.rows != RowType::f32) cache.shape.arithmetic = AttendArithmetic::narrow;
  Attention attention(isa, cache, slots, 1, threads);
  Reader reader;
  ThreadPool pool(threads);
  const std::size_t bytes = std::size_t{slots} / 32 * cache.shape.page_bytes;
  double best = 1e9, limit = 1e9;
  for (auto _ : state) {
    limit = std::min(limit, reader.seconds(pool, bytes));
    best = std::min(best, attention.seconds(pool));
  }
  state.counters["GB/s"] = static_cast<double>(bytes) / best / 1e9;
  state.counters["limit"] = static_cast<double>(bytes) / limit / 1e9;
  state.counters["of_limit"] = limit / best;
  state.counters["GFLOP/s"] = 2.0 * (576 + 512) * heads * slots / best / 1e9;
}
BENCHMARK(decode_latent)
    ->ArgNames({"isa", "threads", "rows", "heads", "parts", "slots"})
    ->Args({kBf16Isa, 1, kF16, 16, 1, 7000})
    ->Args({kBf16Isa, 2, kF16, 16, 1, 7000})
    ->Args({kBf16Isa, 2, kBf16, 16, 1, 7000})
    ->Args({kBf16Isa, 2, kF32, 16, 1, 7000})
    ->Args({kBf16Isa, 2, kF16, 128, 4, 7000})
    ->Args({kBf16Isa, 2, kF16, 128, 8, 7000})
    ->Args({kAvx512, 2, kF16, 16, 1, 7000})
    ->Args({kAvx2, 2, kF16, 16, 1, 7000})
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);

void prefill(benchmark::State& state) {
  const auto arg = [&](int i) { return static_cast<std::uint32_t>(state.range(i)); };
  const Isa isa = static_cast<Isa>(arg(0));
  if (!cpu_has(isa)) return state.SkipWithError("this machine has no such instructions");
  state.SetLabel(std::string(isa_name(isa)));
  const std::uint32_t threads = arg(1), slots = arg(5), rows = arg(6);
  const Cache cache(static_cast<RowType>(arg(2)), 3, arg(3), arg(4), 2, slots);
  Attention attention(isa, cache, slots, rows, threads);
  ThreadPool pool(threads);
  double best = 1e9, limit = 0;
  for (auto _ : state) {
    limit = std::max(limit, multiply_rate(pool));
    best = std::min(best, attention.seconds(pool));
  }
  double seen = 0;
  for (std::uint32_t i = 0; i < rows; ++i) seen += slots - rows + i + 1;
  const double flops = 4.0 * seen * cache.shape.head_dim * cache.shape.query_heads;
  state.counters["GFLOP/s"] = flops / best / 1e9;
  state.counters["limit"] = limit / 1e9;
  state.counters["of_limit"] = flops / best / limit;
}
BENCHMARK(prefill)
    ->ArgNames({"isa", "threads", "rows", "heads", "dim", "slots", "queries"})
    ->Args({kAvx512, 1, kF16, 3, 64, 2048, 32})
    ->Args({kAvx512, 1, kF16, 3, 64, 8000, 16})
    ->Args({kAvx512, 1, kF16, 3, 64, 256, 256})
    ->Args({kAvx512, 2, kF16, 3, 64, 2048, 512})
    ->Args({kAvx512, 1, kF32, 3, 64, 2048, 32})
    ->Args({kAvx512, 1, kBf16, 3, 64, 2048, 32})
    ->Args({kAvx512, 1, kF16, 1, 64, 2048, 96})
    ->Args({kAvx512, 1, kF16, 4, 128, 2048, 12})
    ->Args({kAvx512, 1, kF16, 4, 256, 2048, 12})
    ->Args({kAvx2, 1, kF16, 3, 64, 2048, 32})
    ->Iterations(100)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quire
