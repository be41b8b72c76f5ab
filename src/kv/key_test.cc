#include "kv/key.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

namespace quire {
namespace {

KeySecret test_secret(std::uint32_t keep_bits = 256) {
  std::array<std::uint8_t, 64> bytes;
  for (std::size_t i = 0; i < 64; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  return KeySecret(bytes, {.keep_bits = keep_bits});
}

RootIdentity test_identity() {
  RootIdentity id;
  id.weights.fill(0x11);
  id.adapter = "lora";
  id.layout.fill(0x22);
  id.position_scheme = "rope/theta=10000";
  id.tokens_per_block = 4;
  id.numerics = "n1";
  id.tenant = "acme";
  return id;
}

// The expected keys come from Python's hashlib:
//
//   import hashlib, struct
//   secret = bytes(range(64))
//   field = lambda tag, b: struct.pack("<BI", tag, len(b)) + b
//   root = hashlib.sha256(secret + b"\x01R" + field(1, b"\x11" * 32) + field(2, b"lora") +
//       field(3, b"\x22" * 32) + field(4, b"rope/theta=10000") + field(5, struct.pack("<I", 4)) +
//       field(6, b"n1") + field(7, b"acme")).digest()
//   def block(parent, tokens, changes=()):
//     out = secret + b"\x01B" + struct.pack("<HI", len(changes), len(tokens)) + parent
//     out += b"".join(struct.pack("<I", t) for t in tokens)
//     for kind, offset, value in changes:
//       out += struct.pack("<BII", kind, offset, len(value)) + value
//     return hashlib.sha256(out).digest()
//   first = block(root, [1, 2, 3, 4])
//   second = block(first, [5, 6, 7, 0xffffffff])
//   salted = block(first, [5, 6, 7, 8], [(1, 0, b"pepper"), (2, 3, b"picture")])
TEST(BlockKey, EqualsWhatPythonComputes) {
  const KeySecret secret = test_secret();
  const BlockKey root = root_key(secret, test_identity());
  EXPECT_EQ(root.hex(), "9f1878db5539bb1672b426b231a094953b20db2c68faa8ba3625c1301615d107");
  const std::uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 0xffffffff, 9};
  KeyChain chain(secret, root, 4);
  chain.extend(tokens);
  ASSERT_EQ(chain.keys().size(), 2u);
  EXPECT_EQ(chain.keys()[0].hex(),
            "66a10485cc01e1a3247d9c842d5ab1854c75a7e5c670233b2b0e56b9a91c3a84");
  EXPECT_EQ(chain.keys()[1].hex(),
            "31ff7b4c660d25ff01075358370788454e53769cf15e8b8f84a66e3363af2af4");
  const std::uint32_t other[] = {1, 2, 3, 4, 5, 6, 7, 8};
  KeyChain salted(secret, root, 4);
  salted.change({.position = 4, .kind = ChangeKind::salt, .value = "pepper"});
  salted.change({.position = 7, .kind = ChangeKind::media, .value = "picture"});
  salted.extend(other);
  EXPECT_EQ(salted.keys()[0], chain.keys()[0]);  // before the salt all is shared
  EXPECT_EQ(salted.keys()[1].hex(),
            "b8b4563f8e8eed7260e25e93c2fd505648959a30e3224ccc65340b7751e68442");
}

TEST(BlockKey, EveryPartOfTheIdentityCounts) {
  const KeySecret secret = test_secret();
  std::set<BlockKey> keys{root_key(secret, test_identity())};
  const auto with = [&](auto change) {
    RootIdentity id = test_identity();
    change(id);
    keys.insert(root_key(secret, id));
  };
  with([](RootIdentity& id) { id.weights[31] ^= 1; });
  with([](RootIdentity& id) { id.adapter = ""; });
  with([](RootIdentity& id) { id.layout[0] ^= 1; });
  with([](RootIdentity& id) { id.position_scheme += "0"; });
  with([](RootIdentity& id) { id.tokens_per_block = 5; });
  with([](RootIdentity& id) { id.numerics = "n2"; });
  with([](RootIdentity& id) { id.tenant = "acm"; });
  with(
      [](RootIdentity& id) { id.numerics = "n1acme", id.tenant = ""; });  // lengths tell them apart
  EXPECT_EQ(keys.size(), 9u);
}

TEST(BlockKey, AnotherSecretGivesOtherKeys) {
  EXPECT_NE(root_key(KeySecret::random(), test_identity()),
            root_key(KeySecret::random(), test_identity()));
}

TEST(KeyChain, GrowingTokenByTokenGivesTheSameKeysAsAllAtOnce) {
  const KeySecret secret = test_secret();
  std::vector<std::uint32_t> tokens(103);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i * i);
  KeyChain whole(secret, {}, 16), grown(secret, {}, 16);
  whole.extend(tokens);
  for (std::size_t n = 0; n <= tokens.size(); ++n) {
    grown.extend(std::span(tokens).first(n));
    ASSERT_EQ(grown.keys().size(), n / 16);
  }
  EXPECT_TRUE(std::equal(whole.keys().begin(), whole.keys().end(), grown.keys().begin()));
}

TEST(KeyChain, OneTokenChangesItsBlockAndAllAfterIt) {
  const KeySecret secret = test_secret();
  std::vector<std::uint32_t> a(64, 7), b = a;
  b[20] = 8;
  KeyChain ka(secret, {}, 8), kb(secret, {}, 8);
  ka.extend(a);
  kb.extend(b);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(ka.keys()[i] == kb.keys()[i], i < 2) << i;
}

TEST(KeyChain, EqualTokensAtAnotherPlaceHaveAnotherKey) {
  const std::vector<std::uint32_t> tokens(64, 7);
  const KeySecret secret = test_secret();
  KeyChain chain(secret, {}, 8);
  chain.extend(tokens);
  EXPECT_EQ(std::set<BlockKey>(chain.keys().begin(), chain.keys().end()).size(), 8u);
}

TEST(KeyChain, TruncatedAndRegrownItFollowsTheNewTokens) {
  const KeySecret secret = test_secret();
  std::vector<std::uint32_t> a(40, 1), b = a;
  for (std::size_t i = 21; i < 40; ++i) b[i] = 2;
  KeyChain rolled(secret, {}, 8), straight(secret, {}, 8);
  rolled.change({.position = 30, .kind = ChangeKind::media, .value = "x"});
  rolled.extend(a);
  rolled.truncate(21);
  EXPECT_EQ(rolled.keys().size(), 2u);
  EXPECT_TRUE(rolled.changes().empty());
  rolled.extend(b);
  straight.extend(b);
  EXPECT_TRUE(std::equal(rolled.keys().begin(), rolled.keys().end(), straight.keys().begin()));
}

TEST(KeyChain, KindPlaceAndValueOfAChangeAllCount) {
  const KeySecret secret = test_secret();
  const std::vector<std::uint32_t> tokens(8, 1);
  std::set<BlockKey> keys;
  const auto with = [&](std::vector<KeyChange> changes) {
    KeyChain chain(secret, {}, 8);
    for (const KeyChange& c : changes) chain.change(c);
    chain.extend(tokens);
    keys.insert(chain.keys()[0]);
  };
  with({});
  with({{0, ChangeKind::salt, "a"}});
  with({{0, ChangeKind::salt, "b"}});
  with({{0, ChangeKind::media, "a"}});
  with({{0, ChangeKind::producer, "a"}});
  with({{0, ChangeKind::converted, "a"}});
  with({{1, ChangeKind::media, "a"}});
  with({{0, ChangeKind::media, ""}, {0, ChangeKind::media, "a"}});
  EXPECT_EQ(keys.size(), 8u);
}

TEST(KeyChainDeath, AChangeInsideAKeyedBlockOrASaltInsideABlockIsABug) {
  const KeySecret secret = test_secret();
  KeyChain chain(secret, {}, 8);
  chain.extend(std::vector<std::uint32_t>(9, 1));
  EXPECT_DEATH(chain.change({.position = 7, .kind = ChangeKind::media}), "position");
  EXPECT_DEATH(chain.change({.position = 9, .kind = ChangeKind::salt}), "salt");
}

TEST(KeySecret, CutToEightBitsKeysCollideAndOtherBytesAreZero) {
  const KeySecret secret = test_secret(8), full = test_secret();
  std::vector<std::uint32_t> tokens(4 * 1000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i);
  KeyChain chain(secret, root_key(secret, test_identity()), 4);
  chain.extend(tokens);
  std::set<BlockKey> distinct(chain.keys().begin(), chain.keys().end());
  EXPECT_GT(distinct.size(), 200u);
  EXPECT_LE(distinct.size(), 256u);
  for (const BlockKey& k : chain.keys()) EXPECT_EQ(std::string(k.hex(), 2), std::string(62, '0'));
  EXPECT_EQ(root_key(secret, test_identity()).bytes[0], root_key(full, test_identity()).bytes[0]);
}

TEST(KeySecret, IsSharedByThreads) {
  const KeySecret secret = test_secret();
  const std::vector<std::uint32_t> tokens(32 * 200, 5);
  std::vector<KeyChain> chains(4, KeyChain(secret, {}, 32));
  std::vector<std::thread> threads;
  for (KeyChain& chain : chains) threads.emplace_back([&] { chain.extend(tokens); });
  for (std::thread& t : threads) t.join();
  for (const KeyChain& chain : chains) EXPECT_EQ(chain.keys().back(), chains[0].keys().back());
}

}  // namespace
}  // namespace quire
