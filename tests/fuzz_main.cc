// tests/fuzz_main.cc - runs a libFuzzer entry point without libFuzzer.
//
// Replays every file of the corpus folder given, then seeded mutations of them (and of nothing), so
// that each ordinary test run exercises the fuzzers a little: 2,000 mutations, or as many as ten
// seconds of this process's time allow. QUIRE_FUZZ_RUNS sets another number, without a limit.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {
using Bytes = std::vector<std::uint8_t>;

void mutate(Bytes& input, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (std::size_t edits = 1 + below(8); edits > 0; --edits) {
    const std::size_t kind = below(5);
    if (input.empty() || kind == 0) {
      const std::size_t at = below(input.size() + 1);
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(at),
                   static_cast<std::uint8_t>(random()));
    } else if (kind == 1) {
      input[below(input.size())] = static_cast<std::uint8_t>(random());
    } else if (kind == 2) {
      input[below(input.size())] ^= static_cast<std::uint8_t>(1u << below(8));
    } else if (kind == 3) {
      const std::size_t at = below(input.size());
      const std::size_t count = 1 + below(std::min<std::size_t>(16, input.size() - at));
      input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                  input.begin() + static_cast<std::ptrdiff_t>(at + count));
    } else {
      const std::size_t at = below(input.size());
      const std::uint8_t value = below(2) ? 0xff : 0x00;
      for (std::size_t i = at; i < std::min(input.size(), at + 8); ++i) input[i] = value;
    }
  }
}
}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> corpus{{}};
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) continue;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      std::ifstream in(file, std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  }
  for (const Bytes& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  const char* wanted = std::getenv("QUIRE_FUZZ_RUNS");
  const long runs_max = wanted ? std::atol(wanted) : 2000;
  const std::clock_t end = std::clock() + 10 * CLOCKS_PER_SEC;
  std::mt19937_64 random(1);
  long runs = 0;
  for (; runs < runs_max && (wanted || std::clock() < end); ++runs) {
    Bytes input = corpus[random() % corpus.size()];
    mutate(input, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu corpus files and %ld mutations\n", corpus.size() - 1, runs);
}
