#include "replay/block_replay.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "base/random.h"
#include "replay/lines.h"
#include "replay/mooncake.h"

namespace quire {
namespace {

const EvictPolicy& policy(std::string_view name) { return *find_replay_evict_policy(name).value(); }

// Conversations: each request is a prefix of many requests, then blocks of its own.
std::vector<BlockChain> conversations(std::uint32_t requests, std::uint64_t seed) {
  Random random(seed);
  std::vector<BlockChain> all;
  std::vector<std::size_t> open;
  std::uint64_t fresh = 100;
  for (std::uint32_t n = 0; n < requests; ++n) {
    BlockChain chain;
    if (!open.empty() && random.chance(0.5))
      chain = all[open[random.below(open.size())]];
    else
      chain.ids = {random.below(3)};
    for (std::uint64_t i = 1 + random.below(6); i-- > 0;) chain.ids.push_back(fresh++);
    open.push_back(all.size());
    if (open.size() > 20) open.erase(open.begin());
    all.push_back(std::move(chain));
  }
  return all;
}

// The rules as they are written in block_replay.h, with a plain map: the oldest leaf leaves.
std::uint64_t plain_lru_hits(const std::vector<BlockChain>& requests, std::size_t capacity) {
  std::map<std::vector<std::uint64_t>, std::uint64_t> present;  // prefix -> last touch
  std::uint64_t hits = 0, time = 0;
  for (const BlockChain& r : requests) {
    std::vector<std::uint64_t> prefix;
    bool hit = true;
    for (const std::uint64_t id : r.ids) {
      prefix.push_back(id);
      hit = hit && present.contains(prefix);
      hits += hit;
    }
    for (; !prefix.empty(); prefix.pop_back()) present[prefix] = ++time;
    while (present.size() > capacity) {
      auto oldest = present.begin();
      for (auto i = present.begin(); i != present.end(); ++i)
        if (i->second < oldest->second) oldest = i;
      present.erase(oldest);
    }
  }
  return hits;
}

TEST(BlockReplay, LruFollowsTheWrittenRules) {
  const auto requests = conversations(400, 3);
  for (const std::size_t capacity : {30u, 100u, 300u})
    EXPECT_EQ(replay_blocks(requests, policy("lru"), capacity).hit_blocks,
              plain_lru_hits(requests, capacity))
        << capacity;
}

TEST(BlockReplay, WithoutABoundEveryBlockSeenBeforeIsAHit) {
  const auto requests = conversations(300, 4);
  for (const EvictPolicy* p : replay_evict_policies()) {
    const BlockReplay r = replay_blocks(requests, *p, 0);
    EXPECT_EQ(r.hit_blocks, r.blocks - r.unique_blocks) << p->name;
    EXPECT_EQ(r.evicted_blocks, 0u);
  }
}

TEST(BlockReplay, NobodyBeatsTheClairvoyant) {
  const auto requests = conversations(2000, 5);
  for (const std::size_t capacity : {50u, 200u}) {
    const std::uint64_t best = replay_blocks(requests, policy("clairvoyant"), capacity).hit_blocks;
    for (const EvictPolicy* p : evict_policies())
      EXPECT_LE(replay_blocks(requests, *p, capacity).hit_blocks, best) << p->name;
  }
}

// A user reads an answer before asking again. So blocks come back after a while, and a cache that
// holds only the newest serves nobody.
TEST(BlockReplay, OddsKeepsWhatIsAboutToComeBack) {
  std::vector<BlockChain> requests;
  Random random(9);
  for (std::uint64_t n = 0; n < 6000; ++n) {
    BlockChain chain;
    const std::uint64_t user = n % 300;  // comes back after 300 requests
    if (user < 60)
      for (std::uint64_t i = 0; i < 4; ++i) chain.ids.push_back(user * 10 + i);
    else
      for (std::uint64_t i = 0; i < 4; ++i) chain.ids.push_back(1000000 + n * 10 + i);
    requests.push_back(std::move(chain));
  }
  const double odds = replay_blocks(requests, policy("odds"), 300).hit_share();
  EXPECT_LT(replay_blocks(requests, policy("lru"), 300).hit_share(), 0.01);
  EXPECT_GT(odds, 0.1);
}

TEST(BlockReplay, IdsInImpossibleOrdersDoNoHarm) {
  std::vector<BlockChain> requests;
  Random random(7);
  for (int n = 0; n < 500; ++n) {
    BlockChain chain;
    for (std::uint64_t i = random.below(9); i-- > 0;) chain.ids.push_back(random.below(4));
    requests.push_back(std::move(chain));
  }
  for (const EvictPolicy* p : replay_evict_policies())
    EXPECT_LE(replay_blocks(requests, *p, 1).hit_blocks, replay_blocks(requests, *p, 50).blocks);
}

std::string scratch(const char* name) {
  return (std::filesystem::temp_directory_path() / (std::string("quire_replay_") + name)).string();
}

TEST(Mooncake, PlainAndCompressedFilesGiveTheSame) {
  const std::string text =
      "{\"timestamp\": 20, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n\n"
      "{\"timestamp\": 10, \"input_length\": 1200, \"output_length\": 6, \"hash_ids\": [1, 3, 4]}";
  const std::string plain = scratch("plain.jsonl"), packed = scratch("packed.jsonl.gz");
  std::ofstream(plain) << text;
  const gzFile out = gzopen(packed.c_str(), "wb");
  ASSERT_GT(gzwrite(out, text.data(), static_cast<unsigned>(text.size())), 0);
  gzclose(out);
  for (const std::string& path : {plain, packed}) {
    const auto trace = read_mooncake(path);
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    ASSERT_EQ(trace.value().size(), 2u);
    EXPECT_EQ(trace.value()[0].input_tokens, 1200u);  // in order of arrival
    EXPECT_EQ(trace.value()[1].arrival, 10'000'000);
  }
  std::filesystem::resize_file(packed, std::filesystem::file_size(packed) / 2);
  EXPECT_FALSE(read_mooncake(packed).ok());
  std::filesystem::remove(plain);
  std::filesystem::remove(packed);
}

TEST(Mooncake, SaysWhichLineIsWrong) {
  const std::string path = scratch("wrong.jsonl");
  std::ofstream(path)
      << "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n{\n";
  const auto trace = read_mooncake(path);
  ASSERT_FALSE(trace.ok());
  EXPECT_NE(trace.error().message.find("line 2"), std::string::npos);
  std::filesystem::remove(path);
}

// The table of shares that was computed elsewhere, and the claim about the default evictor.
TEST(RealTraces, LruIsAsComputedElsewhereAndTheDefaultIsNowhereBelow) {
  const char* const named = std::getenv("QUIRE_TRACES");
  const std::string folder =
      named
          ? named
          : (std::filesystem::path(__FILE__).parent_path() / "../../../../shared/traces").string();
  if (!std::filesystem::exists(folder + "/mooncake-synthetic.jsonl.gz"))
    GTEST_SKIP() << "Mooncake's traces are not here; QUIRE_TRACES may name their folder";
  struct Case {
    const char* file;
    std::uint64_t capacity;
    double lru, s3fifo, clairvoyant;
  };
  for (const Case& c : {Case{"conversation", 1000, 0.0445, 0.056, 0.1907},
                        Case{"conversation", 30000, 0.3257, 0.286, 0.3664},
                        Case{"synthetic", 1000, 0.0841, 0.089, 0.2767},
                        Case{"synthetic", 5000, 0.2793, 0.294, 0.5263},
                        Case{"synthetic", 10000, 0.4239, 0.431, 0.6180},
                        Case{"synthetic", 30000, 0.6242, 0.626, 0.6396}}) {
    static std::map<std::string, std::vector<BlockChain>> read;
    std::vector<BlockChain>& requests = read[c.file];
    if (requests.empty()) {
      const auto trace = read_mooncake(folder + "/mooncake-" + c.file + ".jsonl.gz");
      ASSERT_TRUE(trace.ok()) << trace.error().message;
      for (const TraceRequest& r : trace.value()) requests.push_back(r.chain);
    }
    const auto share = [&](std::string_view name) {
      return replay_blocks(requests, policy(name), c.capacity).hit_share();
    };
    EXPECT_NEAR(share("lru"), c.lru, 0.0005) << c.file << c.capacity;
    EXPECT_NEAR(share("clairvoyant"), c.clairvoyant, 0.0005) << c.file << c.capacity;
    const double own = share(evict_policies()[0]->name);
    EXPECT_GE(own, c.lru);
    EXPECT_GE(own, c.s3fifo);
    EXPECT_GE(own, share("s3fifo"));
  }
}

}  // namespace
}  // namespace quire
