#include "lab/speed/read_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "model/huge_buffer.h"

namespace quire::lab {
namespace {

constexpr std::size_t kBytes = std::size_t{512} << 20;
constexpr int kPasses = 8;

// Eight sums, so that loads do not wait for additions.
std::uint64_t sum_words(const std::byte* at, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + sizeof sums <= bytes; i += sizeof sums) {
    std::uint64_t words[8];
    std::memcpy(words, at + i, sizeof words);
    for (int w = 0; w < 8; ++w) sums[w] += words[w];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

Result<double> read_rate(ThreadPool& pool) {
  TRY(const HugeBuffer memory, HugeBuffer::allocate(kBytes, "measuring the read rate"));
  std::memset(memory.data(), 1, kBytes);
  std::atomic<std::uint64_t> sink{0};
  double best = 0;
  for (int i = 0; i < kPasses; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](ThreadPool::Worker worker) {
      const std::size_t part = kBytes / worker.count;
      sink += sum_words(memory.data() + part * worker.index, part);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kBytes) / took.count());
  }
  return sink == 0 ? 0 : best;
}

}  // namespace quire::lab
