// bench/ceiling.cc - what this machine can do at most, so that speeds can be given as a share of
// it.
//
// Prints one JSON object: read bandwidth over working sets of several sizes and from the
// second-level cache, and the peak rates of fp32 multiply-add and of int8 dot products, on one
// thread and on all. bench/compare runs it before it measures anything.
//
//   quire_ceiling --threads 2 --seconds 0.3
//
// Each figure is the best of several passes: other work on the machine only ever makes a pass
// slower. The instruction set is chosen at run time (AVX-512 with VNNI, AVX-512, AVX2); without
// AVX2 the arithmetic peaks are reported as 0.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Starts one thread per index behind a common gate and returns the seconds from the gate to the
// last one's end.
double together(int threads, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::atomic<bool> open{false};
  std::vector<std::thread> team;
  for (int i = 0; i < threads; ++i) {
    team.emplace_back([&, i] {
      ++ready;
      while (!open.load(std::memory_order_acquire)) _mm_pause();
      work(i);
    });
  }
  while (ready.load() < threads) _mm_pause();
  const auto start = Clock::now();
  open.store(true, std::memory_order_release);
  for (std::thread& t : team) t.join();
  return seconds_since(start);
}

// Repeats `pass` (which returns a rate) until `budget` seconds are gone, at least three times; the
// best rate counts.
double best_rate(double budget, const std::function<double()>& pass) {
  double best = 0;
  const auto start = Clock::now();
  for (int i = 0; i < 3 || seconds_since(start) < budget; ++i) best = std::max(best, pass());
  return best;
}

// Sums 32-byte words so that every cache line is loaded; the sum is returned to keep the loads
// alive.
__attribute__((target("avx2"), noinline)) std::int64_t read_all(const std::byte* data,
                                                                std::size_t bytes) {
  __m256i sum[8] = {};
  for (std::size_t at = 0; at < bytes; at += 256) {
    for (std::size_t k = 0; k < 8; ++k) {
      const auto* word = reinterpret_cast<const __m256i*>(data + at + 32 * k);
      sum[k] = _mm256_add_epi64(sum[k], _mm256_load_si256(word));
    }
  }
  for (std::size_t k = 1; k < 8; ++k) sum[0] = _mm256_add_epi64(sum[0], sum[k]);
  return _mm256_extract_epi64(sum[0], 0) + _mm256_extract_epi64(sum[0], 3);
}

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, FreeDeleter>;

// Bytes per second read by `threads` threads from buffers of `bytes` in all, each thread its own
// part.
double read_bandwidth(int threads, std::size_t bytes, double budget) {
  const std::size_t page = 2u << 20;
  const std::size_t part =
      std::max(bytes / static_cast<std::size_t>(threads) / 256 * 256, std::size_t{256});
  std::vector<Buffer> buffers;
  for (int i = 0; i < threads; ++i) {
    buffers.emplace_back(
        static_cast<std::byte*>(std::aligned_alloc(page, (part + page - 1) / page * page)));
    std::memset(buffers.back().get(), i + 1, part);
  }
  const std::size_t rounds = std::max<std::size_t>(1, (256u << 20) / bytes);
  std::atomic<std::int64_t> sink{0};
  return best_rate(budget, [&] {
    const double seconds = together(threads, [&](int i) {
      std::int64_t sum = 0;
      for (std::size_t r = 0; r < rounds; ++r) {
        asm volatile("" ::: "memory");  // each round loads again
        sum += read_all(buffers[static_cast<std::size_t>(i)].get(), part);
      }
      sink += sum;
    });
    return static_cast<double>(part * rounds) * threads / seconds;
  });
}

// Each loop issues one instruction on registers 0 to 11: twelve independent chains hide its latency
// on any core in use. Written in assembly because a compiler folds, hoists or spills what it can
// see through.
#define QUIRE_ON_12(line)                                                                   \
  line("0") line("1") line("2") line("3") line("4") line("5") line("6") line("7") line("8") \
      line("9") line("10") line("11")
#define QUIRE_FMA_AVX512(n) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" n "\n"
#define QUIRE_FMA_AVX2(n) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" n "\n"
#define QUIRE_DOT_VNNI(n) "vpdpbusd %%zmm12, %%zmm13, %%zmm" n "\n"
// Without VNNI an int8 dot product is a multiply-add of bytes, a widening multiply-add and an add.
#define QUIRE_DOT_AVX512(n)                \
  "vpmaddubsw %%zmm12, %%zmm13, %%zmm14\n" \
  "vpmaddwd %%zmm14, %%zmm15, %%zmm14\n"   \
  "vpaddd %%zmm14, %%zmm" n ", %%zmm" n "\n"
#define QUIRE_DOT_AVX2(n)                  \
  "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n" \
  "vpmaddwd %%ymm14, %%ymm15, %%ymm14\n"   \
  "vpaddd %%ymm14, %%ymm" n ", %%ymm" n "\n"
#define QUIRE_LOOP(name, line)                                                           \
  void name(long steps) {                                                                \
    asm volatile("vzeroall\n" ::: QUIRE_REGISTERS);                                      \
    for (long i = 0; i < steps; ++i) asm volatile(QUIRE_ON_12(line)::: QUIRE_REGISTERS); \
    asm volatile("vzeroupper\n" ::: QUIRE_REGISTERS);                                    \
  }
#define QUIRE_REGISTERS                                                                    \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
QUIRE_LOOP(fma_avx512, QUIRE_FMA_AVX512)
QUIRE_LOOP(fma_avx2, QUIRE_FMA_AVX2)
QUIRE_LOOP(dot_vnni, QUIRE_DOT_VNNI)
QUIRE_LOOP(dot_avx512, QUIRE_DOT_AVX512)
QUIRE_LOOP(dot_avx2, QUIRE_DOT_AVX2)

struct Peak {
  const char* instructions;
  void (*loop)(long steps);  // null where the machine has none
  double operations_per_step;
};

Peak fma_peak() {
  if (__builtin_cpu_supports("avx512f")) return {"avx512", fma_avx512, 12 * 16 * 2};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {"avx2", fma_avx2, 12 * 8 * 2};
  return {"none", nullptr, 0};
}

Peak int8_peak() {
  if (__builtin_cpu_supports("avx512vnni")) return {"avx512_vnni", dot_vnni, 12 * 64 * 2};
  if (__builtin_cpu_supports("avx512bw")) return {"avx512", dot_avx512, 12 * 64 * 2};
  if (__builtin_cpu_supports("avx2")) return {"avx2", dot_avx2, 12 * 32 * 2};
  return {"none", nullptr, 0};
}

double operations_per_second(const Peak& peak, int threads, double budget) {
  if (peak.loop == nullptr) return 0;
  const long steps = 4'000'000;
  return best_rate(budget, [&] {
    return static_cast<double>(steps) * peak.operations_per_step * threads /
           together(threads, [&](int) { peak.loop(steps); });
  });
}

// A part of a small model stays in a large last-level cache from one step to the next, so the
// bandwidth depends on how much is read in turn.
constexpr std::size_t kWorkingSetsMib[] = {96, 192, 384, 768};

struct Options {
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  double seconds = 0.5;
};

[[noreturn]] void usage(const char* why) {
  std::fprintf(stderr,
               "error: %s\n  hint: quire_ceiling [--threads N] [--seconds S for each figure]\n",
               why);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) usage((name + " needs a value").c_str());
    if (name == "--threads") {
      options.threads = std::atoi(argv[i + 1]);
    } else if (name == "--seconds") {
      options.seconds = std::atof(argv[i + 1]);
    } else {
      usage(("unknown option " + name).c_str());
    }
  }
  if (options.threads < 1 || options.seconds <= 0)
    usage("--threads and --seconds must be positive");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (!__builtin_cpu_supports("avx2")) {
    std::fprintf(stderr, "error: this machine has no AVX2, which the measuring loops need\n");
    return 1;
  }
  const Peak fma = fma_peak(), int8 = int8_peak();
  std::vector<int> counts = {1};
  if (options.threads > 1) counts.push_back(options.threads);
  std::printf(
      "{\"threads\": %d, \"fp32_instructions\": \"%s\", \"int8_instructions\": \"%s\", "
      "\"by_threads\": {",
      options.threads, fma.instructions, int8.instructions);
  for (int threads : counts) {
    std::printf("%s\"%d\": {\"read_gb_per_s\": {", threads == 1 ? "" : ", ", threads);
    for (const std::size_t mib : kWorkingSetsMib) {
      std::printf("%s\"%zu\": %.2f", mib == kWorkingSetsMib[0] ? "" : ", ", mib,
                  read_bandwidth(threads, mib << 20, options.seconds) / 1e9);
    }
    const std::size_t in_cache = std::size_t{512} * 1024 * static_cast<std::size_t>(threads);
    std::printf(
        "}, \"l2_read_gb_per_s\": %.1f, \"fp32_gflop_per_s\": %.1f, \"int8_gop_per_s\": %.1f}",
        read_bandwidth(threads, in_cache, options.seconds) / 1e9,
        operations_per_second(fma, threads, options.seconds) / 1e9,
        operations_per_second(int8, threads, options.seconds) / 1e9);
  }
  std::printf("}}\n");
  return 0;
}
