#include "kv/tier/record.h"

#include <gtest/gtest.h>

#include "kv/tier/record_testing.h"

namespace quire {
namespace {

const DeploymentSecret kSecret = DeploymentSecret::random();

// Whether everything in `bytes` is accepted. What is accepted must be what `block` holds.
bool reads_as(const TestBlock& block, std::span<const std::byte> bytes, const Seal* seal) {
  const auto view = read_record(bytes, seal);
  if (!view.ok()) return false;
  EXPECT_EQ(view.value().head, block.head());
  for (std::uint32_t i = 0; i < block.segments().size(); ++i) {
    const auto& expected = block.segments()[i];
    std::vector<std::byte> to(expected.size());
    const auto stored = bytes.subspan(view.value().segment_at[i], to.size());
    if (!view.value().read_segment(i, stored, to)) return false;
    EXPECT_EQ(to, expected);
  }
  return true;
}

TEST(Record, ReadsBackWhatWasWritten) {
  const Seal seal(kSecret, "tenant");
  for (const Seal* s : {static_cast<const Seal*>(nullptr), &seal})
    for (const std::uint32_t tokens : {0u, 1u, 31u, 32u})
      for (const std::uint32_t segments : {0u, 1u, 30u}) {
        const TestBlock block(1, {.tokens = tokens, .segments = segments, .segment_bytes = 100});
        EXPECT_TRUE(reads_as(block, block.encoded(s), s));
      }
}

TEST(Record, TheHeadAloneIsEnoughToBegin) {
  const TestBlock block(1);
  const auto bytes = block.encoded();
  const std::size_t head = record_head_bytes(block.head());
  EXPECT_EQ(record_claim(bytes), head);
  EXPECT_TRUE(read_record(std::span(bytes).first(head)).ok());
  EXPECT_FALSE(read_record(std::span(bytes).first(head - 1)).ok());
}

TEST(Record, EveryFlippedBitIsNoticed) {
  const Seal seal(kSecret, "tenant");
  const TestBlock block(1, {.tokens = 3, .segments = 2, .segment_bytes = 24});
  for (const Seal* s : {static_cast<const Seal*>(nullptr), &seal}) {
    auto bytes = block.encoded(s);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const std::byte mask = static_cast<std::byte>(1u << (bit % 8));
      bytes[bit / 8] ^= mask;
      EXPECT_FALSE(reads_as(block, bytes, s)) << bit;
      bytes[bit / 8] ^= mask;
    }
    EXPECT_TRUE(reads_as(block, bytes, s));
  }
}

TEST(Record, OneDamagedSegmentLeavesTheOthersUsable) {
  const TestBlock block(1);
  auto bytes = block.encoded();
  const auto view = read_record(bytes);
  ASSERT_TRUE(view.ok());
  bytes[view.value().segment_at[1]] ^= std::byte{1};
  const auto stored = [&](std::uint32_t i) {
    return std::span(bytes).subspan(view.value().segment_at[i], 96);
  };
  EXPECT_TRUE(view.value().segment_ok(0, stored(0)));
  EXPECT_FALSE(view.value().segment_ok(1, stored(1)));
  EXPECT_FALSE(view.value().segment_ok(1, stored(0)));            // of another place
  EXPECT_FALSE(view.value().segment_ok(2, stored(0)));            // there is none
  EXPECT_FALSE(view.value().segment_ok(0, stored(0).first(95)));  // a part of it
}

TEST(Record, ClaimedSizesAllocateNothing) {
  const auto bytes = TestBlock(1, {.tokens = 0, .segments = 0}).encoded();
  for (const std::size_t at : {16u, 20u, 8u, 32u}) {  // tokens, segments, head bytes, record bytes
    auto lying = bytes;
    std::memset(lying.data() + at, 0xff, 4);
    EXPECT_FALSE(read_record(lying).ok()) << at;
    EXPECT_EQ(record_claim(lying), at == 32u ? bytes.size() : 0u) << at;
  }
}

TEST(Record, AnotherVersionIsNamed) {
  auto bytes = TestBlock(1).encoded();
  bytes[4] = std::byte{9};
  const auto view = read_record(bytes);
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.error().code, Code::unsupported);
  EXPECT_NE(view.error().message.find("version 9"), std::string::npos);
}

TEST(Record, AnErasedRecordIsAbsentButStillHasALength) {
  const TestBlock block(1);
  auto bytes = block.encoded();
  EXPECT_TRUE(mark_erased(bytes));
  EXPECT_FALSE(mark_erased(bytes));
  const auto gone = read_record(bytes);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, Code::not_found);
  const auto erased = read_erased(bytes);
  ASSERT_TRUE(erased.ok());
  EXPECT_EQ(erased.value().record_bytes, bytes.size());
  EXPECT_TRUE(
      erased.value().segment_ok(1, std::span(bytes).subspan(erased.value().segment_at[1], 96)));
}

TEST(SealedRecord, NobodyElseCanReadOrForgeIt) {
  const TestBlock block(1);
  const Seal ours(kSecret, "a"), other_tenant(kSecret, "b"),
      stranger(DeploymentSecret::random(), "a");
  const auto bytes = block.encoded(&ours);
  EXPECT_TRUE(reads_as(block, bytes, &ours));
  EXPECT_FALSE(read_record(bytes, &other_tenant).ok());
  EXPECT_FALSE(read_record(bytes, &stranger).ok());
  EXPECT_FALSE(read_record(bytes).ok());
  EXPECT_FALSE(read_record(block.encoded(&stranger), &ours).ok());
  EXPECT_FALSE(read_record(block.encoded(), &ours).ok());  // not sealed at all
  // Neither tokens nor segments can be seen in it.
  for (const auto& s : block.segments())
    EXPECT_EQ(std::search(bytes.begin(), bytes.end(), s.begin(), s.begin() + 16), bytes.end());
}

TEST(SealedRecord, PartsOfTwoRecordsDoNotMix) {
  const Seal seal(kSecret, "a");
  const TestBlock block(1);
  const auto one = block.encoded(&seal), two = block.encoded(&seal);
  EXPECT_NE(one, two);  // another salt
  const std::size_t head = record_head_bytes(block.head());
  auto mixed = one;
  std::copy(two.begin() + static_cast<std::ptrdiff_t>(head), two.end(),
            mixed.begin() + static_cast<std::ptrdiff_t>(head));
  EXPECT_TRUE(read_record(mixed, &seal).ok());
  EXPECT_FALSE(reads_as(block, mixed, &seal));
}

TEST(Secret, ReadsItsOwnTextAndNothingElse) {
  const auto again = DeploymentSecret::parse(kSecret.text(), "secret");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value(), kSecret);
  EXPECT_EQ(again.value().fingerprint(), kSecret.fingerprint());
  EXPECT_NE(DeploymentSecret::random().fingerprint(), kSecret.fingerprint());
  EXPECT_FALSE(DeploymentSecret::parse("", "secret").ok());
  EXPECT_FALSE(DeploymentSecret::parse(kSecret.text().substr(1), "secret").ok());
  EXPECT_FALSE(DeploymentSecret::parse("g" + kSecret.text().substr(1), "secret").ok());
}

TEST(Secret, NamesDependOnSecretKeyGroupAndPart) {
  const KeySecret secret = kSecret.key_secret();
  const BlockKey key{sha256("key")};
  const BlockKey name = stored_key(secret, key, 0);
  EXPECT_EQ(name, stored_key(secret, key, 0));
  EXPECT_NE(name, stored_key(secret, key, 1));
  EXPECT_NE(name, stored_key(secret, key, 0, 1));
  EXPECT_NE(name, stored_key(secret, BlockKey{sha256("other")}, 0));
  EXPECT_NE(name, stored_key(DeploymentSecret::random().key_secret(), key, 0));
}

}  // namespace
}  // namespace quire
