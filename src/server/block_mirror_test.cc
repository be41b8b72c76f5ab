#include "server/block_mirror.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"

namespace quire {
namespace {

MirrorChange there(std::uint64_t hash, std::uint64_t parent, std::string salt = {}) {
  return {
      .hash = hash,
      .there = true,
      .block = {
          .parent = parent, .tokens = {TokenId(hash), TokenId(hash + 1)}, .salt = std::move(salt)}};
}
MirrorChange gone(std::uint64_t hash) { return {.hash = hash}; }

TEST(BlockMirror, JoinsBlocksThatFollowEachOther) {
  BlockMirror mirror({.tokens_per_block = 2});
  const Json events = mirror.apply({there(1, 0), there(2, 1), there(5, 1), there(6, 5)});
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["block_hashes"], Json({1, 2}));
  EXPECT_TRUE(events[0]["parent_block_hash"].is_null());
  EXPECT_EQ(events[0]["token_ids"], Json({1, 2, 2, 3}));
  EXPECT_EQ(events[1]["parent_block_hash"], 1);
  EXPECT_EQ(events[1]["block_hashes"], Json({5, 6}));
  for (const char* name : {"lora_id", "medium", "lora_name", "block_size"})
    EXPECT_TRUE(events[0].contains(name)) << name;
}

TEST(BlockMirror, SaysOnlyWhatIsNew) {
  BlockMirror mirror({.tokens_per_block = 2});
  mirror.apply({there(1, 0), there(2, 1)});
  EXPECT_TRUE(mirror.apply({there(1, 0), gone(7)}).empty());
  const Json events = mirror.apply({gone(1), gone(2)});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["type"], "BlockRemoved");
  EXPECT_EQ(events[0]["block_hashes"], Json({2, 1}));  // children first
  EXPECT_EQ(mirror.size(), 0u);
}

TEST(BlockMirror, SaltsAreToldTwice) {
  BlockMirror mirror({.tokens_per_block = 2});
  const Json events = mirror.apply({there(1, 0, "s"), there(2, 1, "s")});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["extra_keys"], Json::array({Json::array({"s"}), Json::array({"s"})}));
  EXPECT_EQ(events[0]["cache_salt"], "s");
}

TEST(BlockMirror, OldSubscribersGetArrays) {
  BlockMirror mirror({.tokens_per_block = 2, .form = EventForm::array});
  EXPECT_EQ(mirror.apply({there(1, 0)}),
            Json::parse(R"([["BlockStored",[1],null,[1,2],2,null,"GPU",null]])"));
  EXPECT_EQ(mirror.snapshot()[0], Json::array({"AllBlocksCleared"}));
}

// A subscriber that is too simple to be wrong.
struct Subscriber {
  std::map<std::uint64_t, std::uint64_t> blocks;  // and their parents

  void hear(const Json& events, bool parents_first) {
    for (const Json& e : events) {
      if (e["type"] == "AllBlocksCleared") blocks.clear();
      if (e["type"] == "BlockRemoved")
        for (const Json& h : e["block_hashes"]) EXPECT_EQ(blocks.erase(h.get<std::uint64_t>()), 1u);
      if (e["type"] != "BlockStored") continue;
      EXPECT_EQ(e["token_ids"].size(), 2 * e["block_hashes"].size());
      std::uint64_t parent =
          e["parent_block_hash"].is_null() ? 0 : e["parent_block_hash"].get<std::uint64_t>();
      for (const Json& h : e["block_hashes"]) {
        EXPECT_TRUE(!parents_first || parent == 0 || blocks.contains(parent));
        EXPECT_TRUE(blocks.emplace(h.get<std::uint64_t>(), parent).second);
        parent = h.get<std::uint64_t>();
      }
    }
  }
};

TEST(BlockMirror, SubscribersKnowWhatIsThere) {
  Random random(7);
  BlockMirror mirror({.tokens_per_block = 2});
  Subscriber always;
  std::set<std::uint64_t> truth;
  const auto parent_of = [](std::uint64_t h) { return h / 3; };  // a tree
  for (int round = 0; round < 300; ++round) {
    std::vector<MirrorChange> changes;
    std::set<std::uint64_t> touched;
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t h = 1 + random.below(60);
      if (!touched.insert(h).second) continue;
      const bool is = random.chance(0.6);
      changes.push_back(is ? there(h, parent_of(h)) : gone(h));
      is ? (void)truth.insert(h) : (void)truth.erase(h);
    }
    if (random.chance(0.1)) {
      std::vector<MirrorChange> all;
      for (const std::uint64_t h : truth) all.push_back(there(h, parent_of(h)));
      always.hear(mirror.replace(all), false);
    } else {
      always.hear(mirror.apply(changes), false);
    }
    Subscriber late;
    late.hear(mirror.snapshot(), false);
    EXPECT_EQ(late.blocks, always.blocks);
    std::set<std::uint64_t> known;
    for (const auto& [h, parent] : always.blocks) known.insert(h);
    ASSERT_EQ(known, truth);
  }
}

TEST(BlockMirror, ASnapshotTellsParentsFirst) {
  BlockMirror mirror({.tokens_per_block = 2});
  std::vector<MirrorChange> all;
  for (std::uint64_t h = 60; h > 0; --h) all.push_back(there(h, h / 3));
  mirror.apply(all);
  Subscriber late;
  late.hear(mirror.snapshot(), true);
  EXPECT_EQ(late.blocks.size(), 60u);
}

TEST(BlockMirror, PayloadsAreMsgpack) {
  const std::string bytes = event_payload(1.5, Json::array({{{"type", "AllBlocksCleared"}}}));
  const Json back = Json::from_msgpack(bytes.begin(), bytes.end());
  EXPECT_EQ(back[0], 1.5);
  EXPECT_EQ(back[1][0]["type"], "AllBlocksCleared");
  EXPECT_EQ(back.size(), 2u);
  const std::uint64_t large = UINT64_MAX - 1;
  const std::string hash = event_payload(0, Json::array({large}));
  EXPECT_EQ(Json::from_msgpack(hash.begin(), hash.end())[1][0].get<std::uint64_t>(), large);
}

}  // namespace
}  // namespace quire
