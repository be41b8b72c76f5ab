// The vector kernels at the sizes of SmolLM2 (576, 1,536, 49,152) and Gemma (262,144): bytes of
// input per second.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/vector.h"

namespace quire {
namespace {

struct Inputs {
  explicit Inputs(std::size_t n) : x(n), y(n), out(n) {
    Random random(1);
    for (float& v : x) v = static_cast<float>(8 * random.unit() - 4);
    for (float& v : y) v = static_cast<float>(2 * random.unit() - 1);
  }
  std::vector<float> x, y, out;
};

template <class F>
void measure(benchmark::State& state, int streams, F f) {
  const Isa isa = static_cast<Isa>(state.range(0));
  if (!cpu_has(isa)) return state.SkipWithError("this machine has no such instructions");
  state.SetLabel(std::string(isa_name(isa)));
  const auto n = static_cast<std::uint32_t>(state.range(1));
  Inputs in(n);
  for (auto _ : state) {
    f(vector_kernels(isa), in, n);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * streams * n * 4);
}

void add_sizes(benchmark::internal::Benchmark* b, std::initializer_list<long> sizes) {
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    for (const long n : sizes) b->Args({static_cast<long>(isa), n});
}
void row_sizes(benchmark::internal::Benchmark* b) { add_sizes(b, {576, 1536}); }
void logit_sizes(benchmark::internal::Benchmark* b) { add_sizes(b, {49152, 262144}); }

void rms_norm(benchmark::State& state) {
  measure(state, 2, [](const VectorKernels& k, Inputs& in, std::uint32_t n) {
    k.rms_norm(in.x.data(), in.y.data(), 1e-5f, n, in.out.data());
  });
}
BENCHMARK(rms_norm)->Apply(row_sizes);

void rope(benchmark::State& state) {
  measure(state, 2, [](const VectorKernels& k, Inputs& in, std::uint32_t n) {
    for (std::uint32_t i = 0; i < n; i += 64)
      k.rope(in.out.data() + i, 64, in.y.data(), in.y.data() + 32);
  });
}
BENCHMARK(rope)->Apply(row_sizes);

void silu_mul(benchmark::State& state) {
  measure(state, 2, [](const VectorKernels& k, Inputs& in, std::uint32_t n) {
    k.silu_mul(in.x.data(), in.y.data(), n, in.out.data());
  });
}
BENCHMARK(silu_mul)->Apply(row_sizes);

void gelu_mul(benchmark::State& state) {
  measure(state, 2, [](const VectorKernels& k, Inputs& in, std::uint32_t n) {
    k.gelu_mul(in.x.data(), in.y.data(), n, in.out.data());
  });
}
BENCHMARK(gelu_mul)->Apply(row_sizes);

void argmax(benchmark::State& state) {
  measure(state, 1, [](const VectorKernels& k, Inputs& in, std::uint32_t n) {
    benchmark::DoNotOptimize(k.argmax(in.x.data(), n));
  });
}
BENCHMARK(argmax)->Apply(logit_sizes);

void sum_exp(benchmark::State& state) {
  measure(state, 1, [](const VectorKernels& k, Inputs& in, std::uint32_t n) {
    benchmark::DoNotOptimize(k.sum_exp(in.x.data(), 4.0f, n));
  });
}
BENCHMARK(sum_exp)->Apply(logit_sizes);

void softcap(benchmark::State& state) {
  measure(state, 1, [](const VectorKernels& k, Inputs& in, std::uint32_t n) {
    k.softcap(in.out.data(), 30.0f, n);
  });
}
BENCHMARK(softcap)->Apply(logit_sizes);

}  // namespace
}  // namespace quire
