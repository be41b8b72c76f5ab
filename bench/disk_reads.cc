// Reads random records of a cache folder through the disk tier, as a prompt that is restored does: 4 MiB
// at a time, 16 MiB under way, every byte verified. bench/disk compares it with fio.
//
//   quire_disk_reads FOLDER MEGABYTES      prints bytes per second
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/random.h"
#include "kv/tier/disk_tier.h"
#include "kv/tier/record_testing.h"

int main(int argc, char** argv) {
  using namespace quire;
  if (argc < 3) return 2;
  // A block of 32 tokens of a model of 135M parameters.
  constexpr std::uint64_t kSegmentBytes = 73728, kBlockBytes = 10 * kSegmentBytes, kAtOnce = 6,
                          kBatches = 4;
  const TestBlockShape shape{.tokens = 32, .segments = 10, .segment_bytes = kSegmentBytes};
  const std::uint64_t blocks = std::strtoull(argv[2], nullptr, 10) * 1'000'000 / kBlockBytes;
  Mailbox mailbox;
  DiskTierOptions options;
  options.store.folder.path = argv[1];
  options.mailbox = &mailbox;
  auto tier = DiskTier::open(std::move(options));
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", tier.error().message.c_str());
    return 1;
  }
  std::vector<std::shared_ptr<const RecordIdentity>> names;
  for (std::uint64_t n = 0; n < blocks; ++n) {
    const TestBlock block(n, shape);
    names.push_back(block.identity());
    const RecordWrite write{.of = names.back(),
                            .segments = block.head().segments,
                            .bytes = block.spans(),
                            .recompute_us = 1,
                            .tenant = {}};
    bool ended = false;
    tier.value()->write({&write, 1}, [&](std::span<const TierOutcome> ends) {
      ended = ends[0] == TierOutcome::ok || ends[0] == TierOutcome::already;
      if (!ended) std::exit(1);
    });
    while (mailbox.drain(), !ended) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  bool flushed = false;
  tier.value()->flush([&] { flushed = true; });
  while (mailbox.drain(), !flushed) std::this_thread::sleep_for(std::chrono::milliseconds(1));

  Random random(
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  std::vector<std::vector<std::byte>> memory(kBatches);
  for (auto& m : memory) m.resize(kAtOnce * kBlockBytes);
  std::uint64_t asked = 0, ended = 0, bytes = 0, failed = 0;
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::size_t> idle;
  for (std::size_t i = 0; i < kBatches; ++i) idle.push_back(i);
  while (ended < blocks) {
    while (!idle.empty() && asked < blocks) {
      const std::size_t which = idle.back();
      idle.pop_back();
      std::vector<SegmentRead> reads;
      for (std::uint64_t b = 0; b < kAtOnce; ++b) {
        const auto& of = names[random.below(blocks)];
        for (std::uint32_t s = 0; s < shape.segments; ++s)
          reads.push_back({.of = of,
                           .segment = s,
                           .to = std::span(memory[which])
                                     .subspan(b * kBlockBytes + s * kSegmentBytes, kSegmentBytes)});
      }
      asked += kAtOnce;
      tier.value()->read(reads, [&, which](std::span<const ReadEnd> ends, bool last) {
        for (const ReadEnd& e : ends) {
          failed += e.outcome != TierOutcome::ok;
          bytes += kSegmentBytes;
        }
        if (!last) return;
        idle.push_back(which);
        ended += kAtOnce;
      });
    }
    if (mailbox.drain() == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("%.0f\n", static_cast<double>(bytes) / seconds);
  return failed == 0 ? 0 : 1;
}
