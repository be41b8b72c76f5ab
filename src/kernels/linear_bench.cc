// Linear layers against what the machine can do: multiply rate (VPDPBUSD from registers) and read
// rate, measured on one thread right beside each figure. Rates are those of the fastest repetition.
//
//   kernels_linear_bench --benchmark_filter=Decode
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 says it of its own intrinsics

#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <ctime>

#include "kernels/linear.h"
#include "kernels/linear_samples.h"

namespace quire {
namespace {

// Time this thread had a core: what others do on a busy machine does not count, except that they
// use its memory too.
double seconds_now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <class F>
double best_seconds(int repetitions, F&& f) {
  double best = 1e9;
  for (int i = 0; i < repetitions; ++i) {
    const double start = seconds_now();
    f();
    best = std::min(best, seconds_now() - start);
  }
  return best;
}

__attribute__((target("avx512f,avx512vnni"))) void multiply_from_registers(int rounds) {
  __m512i sums[16];
  for (__m512i& s : sums) s = _mm512_setzero_si512();
  __m512i a = _mm512_set1_epi32(rounds), b = a;
  for (int i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
    for (__m512i& s : sums) s = _mm512_dpbusd_epi32(s, a, b);
  }
  for (const __m512i& s : sums) a = _mm512_add_epi32(a, s);
  benchmark::DoNotOptimize(_mm512_reduce_add_epi32(a));
}

double measured_peak_ops() {
  constexpr int kRounds = 100000;
  return kRounds * 16 * 128.0 / best_seconds(10, [] { multiply_from_registers(kRounds); });
}

__attribute__((target("avx512f"))) void read_all(const std::byte* p, std::size_t n) {
  __m512i sums[8];
  for (__m512i& s : sums) s = _mm512_setzero_si512();
  for (std::size_t i = 0; i + 512 <= n; i += 512)
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k)
      sums[k] = _mm512_add_epi64(sums[k], _mm512_loadu_si512(p + i + 64 * k));
  for (int k = 1; k < 8; ++k) sums[0] = _mm512_add_epi64(sums[0], sums[k]);
  benchmark::DoNotOptimize(_mm512_reduce_add_epi64(sums[0]));
}

AlignedBytes huge_bytes(std::size_t n) {
  constexpr std::size_t kPage = std::size_t{2} << 20;
  const std::size_t rounded = (n + kPage - 1) / kPage * kPage;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
  madvise(p, rounded, MADV_HUGEPAGE);
  return AlignedBytes(p);
}

constexpr std::size_t kColdBytes = std::size_t{160} << 20;  // well past the last cache

// As many copies of one packed matrix as fill kColdBytes, so that each pass reads memory.
struct ColdMatrix {
  ColdMatrix(DType type, std::uint32_t outputs, std::uint32_t inputs) {
    Random random(1);
    const SampleMatrix one(type, outputs, inputs, random);
    packed = one.packed;
    bytes = packed_bytes(type, outputs, inputs);
    count = std::max<std::size_t>(1, kColdBytes / bytes);
    memory = huge_bytes(count * bytes);
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(memory.get() + i * bytes, one.memory.get(), bytes);
  }
  PackedMatrix copy(std::size_t i) const {
    PackedMatrix w = packed;
    w.data = memory.get() + i * bytes;
    return w;
  }
  PackedMatrix packed;
  std::size_t bytes, count;
  AlignedBytes memory;
};

void report(benchmark::State& state, double ops, double bytes, double seconds) {
  state.counters["GOP/s"] = ops / seconds / 1e9;
  state.counters["GB/s"] = bytes / seconds / 1e9;
}

// Few rows, weights from memory.
void decode(benchmark::State& state, Isa isa, DType type, Activations mode, std::uint32_t outputs,
            std::uint32_t inputs) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const LinearKernels& kernels = linear_kernels(isa);
  const ColdMatrix w(type, outputs, inputs);
  Random random(2);
  const SampleRows x(mode, rows, inputs, kernels,
                     sample_floats(std::size_t{rows} * inputs, random));
  std::vector<float> out(std::size_t{rows} * outputs);
  double best = 1e9, best_read = 1e9;
  const std::size_t slice = std::max<std::size_t>(1, w.count / 8);  // short, to find a quiet moment
  for (auto _ : state) {
    for (std::size_t from = 0; from + slice <= w.count; from += slice)
      best = std::min(best, best_seconds(1, [&] {
                        for (std::size_t i = from; i < from + slice; ++i)
                          kernels.multiply(w.copy(i), x.rows, 0, rows, 0, w.packed.padded_outputs(),
                                           out.data(), outputs, nullptr);
                      }));
    for (std::size_t from = 0; from + slice <= w.count; from += slice)
      best_read = std::min(best_read, best_seconds(1, [&] {
                             read_all(w.memory.get() + from * w.bytes, slice * w.bytes);
                           }));
  }
  const double bytes = static_cast<double>(w.bytes * slice);
  report(state, 2.0 * rows * outputs * inputs * static_cast<double>(slice), bytes, best);
  state.counters["of_read"] = best_read / best;
}

// Many rows, weights in cache.
void prefill(benchmark::State& state, Isa isa, DType type, Activations mode, std::uint32_t outputs,
             std::uint32_t inputs) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const LinearKernels& kernels = linear_kernels(isa);
  Random random(3);
  const SampleMatrix w(type, outputs, inputs, random);
  const SampleRows x(mode, rows, inputs, kernels,
                     sample_floats(std::size_t{rows} * inputs, random));
  std::vector<float> out(std::size_t{rows} * outputs);
  double best = 1e9, peak = 0;
  for (auto _ : state)
    best = std::min(best, best_seconds(1, [&] {
                      kernels.multiply(w.packed, x.rows, 0, rows, 0, w.packed.padded_outputs(),
                                       out.data(), outputs, nullptr);
                    }));
  if (cpu_has(Isa::vnni)) peak = measured_peak_ops();
  const double ops = 2.0 * rows * outputs * inputs;
  report(state, ops, static_cast<double>(packed_bytes(type, outputs, inputs)), best);
  if (peak > 0) state.counters["of_peak"] = ops / best / peak;
}

void quantize_rows(benchmark::State& state, Isa isa, Activations mode) {
  const std::uint32_t rows = 64, inputs = 1536;
  Random random(4);
  SampleRows x(mode, rows, inputs, linear_kernels(isa), sample_floats(rows * inputs, random));
  double best = 1e9;
  for (auto _ : state)
    best = std::min(best, best_seconds(1, [&] {
                      for (std::uint32_t r = 0; r < rows; ++r)
                        linear_kernels(isa).quantize(&x.plain[r * inputs], r, 0, inputs, x.rows);
                    }));
  state.counters["ns/1000"] = best * 1e12 / (rows * inputs);
}

std::string full_name(const char* what, Isa isa, DType type, Activations mode,
                      std::uint32_t outputs, std::uint32_t inputs) {
  return std::string(what) + "/" + std::string(isa_name(isa)) + "/" +
         std::string(dtype_info(type).name) + (mode == Activations::int8 ? "" : "/int16") + "/" +
         std::to_string(inputs) + "to" + std::to_string(outputs);
}

void register_all() {
  struct Shape {
    DType type;
    std::uint32_t outputs, inputs;
  };
  const Shape decoded[] = {
      {DType::q4_1, 1536, 576}, {DType::q4_1, 576, 1536}, {DType::q8_0, 49152, 576}};
  for (const Isa isa : kIsas) {
    if (isa == Isa::scalar || !cpu_has(isa)) continue;
    for (const Activations mode : {Activations::int8, Activations::int16}) {
      const bool wide = mode == Activations::int16;
      const auto add_decode = [&](const Shape& s, std::vector<std::int64_t> rows) {
        auto* b = benchmark::RegisterBenchmark(
            full_name("Decode", isa, s.type, mode, s.outputs, s.inputs).c_str(), decode, isa,
            s.type, mode, s.outputs, s.inputs);
        for (const std::int64_t r : rows) b->Arg(r);
        b->Unit(benchmark::kMillisecond)->Iterations(7);
      };
      const auto add_prefill = [&](const Shape& s) {
        benchmark::RegisterBenchmark(
            full_name("Prefill", isa, s.type, mode, s.outputs, s.inputs).c_str(), prefill, isa,
            s.type, mode, s.outputs, s.inputs)
            ->Arg(512)
            ->Unit(benchmark::kMillisecond)
            ->Iterations(isa == Isa::vnni ? 20 : 5);
      };
      for (const Shape& s : decoded) add_decode(s, {1, 2, 4, 8});
      for (const Shape& s : {Shape{DType::q4_1, 1536, 576},
                             {DType::q4_1, 3072, 576},
                             {DType::q4_1, 576, 1536},
                             {DType::q4_1, 1024, 4096}})
        add_prefill(s);
      for (const DType type : kLinearTypes) {
        if (type == DType::q4_1 || (wide && !uses_quantized_activations(type))) continue;
        add_decode({type, 1536, 768}, {1, 4});
        add_prefill({type, 1536, 768});
      }
      benchmark::RegisterBenchmark(
          (std::string("Quantize/") + std::string(isa_name(isa)) + (wide ? "/int16" : "")).c_str(),
          quantize_rows, isa, mode)
          ->Iterations(200);
    }
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  quire::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
