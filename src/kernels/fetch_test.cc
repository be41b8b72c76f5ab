#include "kernels/fetch.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

TEST(Fetch, EveryByteOnceByAllWorkersTogether) {
  constexpr std::size_t kBlock = 1000, kOffset = 300, kBytes = 450;
  std::vector<std::byte> memory(7 * kBlock);
  std::vector<const std::byte*> blocks;
  for (std::size_t b = 0; b < 7; ++b) blocks.push_back(memory.data() + b * kBlock);
  std::vector<int> fetched(memory.size());
  for (std::size_t worker = 0; worker < 3; ++worker) {
    Fetch fetch{.blocks = blocks.data(),
                .count = blocks.size(),
                .at = worker,
                .stride = 3,
                .offset = kOffset,
                .bytes = kBytes};
    const std::size_t most = 64 + 64 * worker;
    for (FetchPart part; (part = next_part(fetch, most)).begin != part.end;) {
      EXPECT_LE(static_cast<std::size_t>(part.end - part.begin), most);
      for (const std::byte* at = part.begin; at < part.end; ++at)
        ++fetched[static_cast<std::size_t>(at - memory.data())];
    }
    EXPECT_EQ(next_part(fetch, 64).begin, nullptr);
  }
  for (std::size_t i = 0; i < fetched.size(); ++i) {
    const std::size_t at = i % kBlock;
    EXPECT_EQ(fetched[i], at >= kOffset && at < kOffset + kBytes) << i;
  }
}

TEST(Fetch, NothingOfNoBlocks) {
  Fetch fetch;
  EXPECT_EQ(next_part(fetch, 64).begin, nullptr);
}

}  // namespace
}  // namespace quire
