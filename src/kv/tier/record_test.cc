#include "kv/tier/record.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire {
namespace {

struct Sample {
  RecordHead head;
  std::vector<std::byte> block, bytes;
};

Sample sample(std::uint32_t tokens = 32, std::uint32_t layers = 5, std::uint64_t segment = 96) {
  Sample s;
  s.head = {.key = {sha256("key")},
            .layout = sha256("layout"),
            .group = 1,
            .first_layer = 2,
            .layers = layers,
            .segment_bytes = segment};
  s.head.tokens.resize(tokens);
  std::iota(s.head.tokens.begin(), s.head.tokens.end(), 7u);
  s.block.resize(layers * segment);
  for (std::size_t i = 0; i < s.block.size(); ++i) s.block[i] = static_cast<std::byte>(i * 31 + 5);
  s.bytes = encode_record(s.head, s.block);
  return s;
}

std::span<const std::byte> segment(const Sample& s, const RecordView& view, std::uint32_t layer) {
  return std::span(s.bytes).subspan(view.segment_at(layer), view.head.segment_bytes);
}

TEST(Record, ReadsBackWhatWasWritten) {
  for (const std::uint32_t tokens : {0u, 1u, 31u, 32u})
    for (const std::uint32_t layers : {0u, 1u, 30u}) {
      const Sample s = sample(tokens, layers);
      const auto view = read_record(s.bytes);
      ASSERT_TRUE(view.ok()) << view.error().message;
      EXPECT_EQ(view.value().head, s.head);
      EXPECT_EQ(view.value().record_bytes(), s.bytes.size());
      for (std::uint32_t layer = 0; layer < layers; ++layer)
        EXPECT_TRUE(view.value().segment_ok(layer, segment(s, view.value(), layer)));
    }
}

TEST(Record, TheHeadAloneIsEnoughToBegin) {
  const Sample s = sample();
  const std::size_t head = record_head_bytes(s.head);
  EXPECT_TRUE(read_record(std::span(s.bytes).first(head)).ok());
  EXPECT_FALSE(read_record(std::span(s.bytes).first(head - 1)).ok());
}

TEST(Record, EveryFlippedBitIsNoticed) {
  const Sample s = sample(3, 2, 16);
  for (std::size_t bit = 0; bit < s.bytes.size() * 8; ++bit) {
    Sample broken = s;
    broken.bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto view = read_record(broken.bytes);
    if (bit / 8 < record_head_bytes(s.head)) {
      EXPECT_FALSE(view.ok()) << bit;
      continue;
    }
    ASSERT_TRUE(view.ok());
    const auto damaged =
        static_cast<std::uint32_t>((bit / 8 - view.value().head_bytes) / s.head.segment_bytes);
    for (std::uint32_t layer = 0; layer < s.head.layers; ++layer)
      EXPECT_EQ(view.value().segment_ok(layer, segment(broken, view.value(), layer)),
                layer != damaged);
  }
}

TEST(Record, ClaimedSizesAllocateNothing) {
  Sample s = sample(0, 0, 0);
  for (const std::size_t at : {20u, 24u, 36u}) {  // layers, tokens, the upper half of segment bytes
    Sample lying = s;
    std::memset(lying.bytes.data() + at, 0xff, 4);
    const auto view = read_record(lying.bytes);
    ASSERT_FALSE(view.ok());
    EXPECT_NE(view.error().message.find("claims"), std::string::npos) << view.error().message;
  }
}

TEST(Record, ASegmentOfAnotherPlaceIsRefused) {
  const Sample s = sample();
  const auto view = read_record(s.bytes);
  ASSERT_TRUE(view.ok());
  EXPECT_FALSE(view.value().segment_ok(0, segment(s, view.value(), 1)));
  EXPECT_FALSE(view.value().segment_ok(5, segment(s, view.value(), 0)));
  EXPECT_FALSE(view.value().segment_ok(0, segment(s, view.value(), 0).first(95)));
}

TEST(Record, AnotherVersionIsNamed) {
  Sample s = sample();
  s.bytes[4] = std::byte{9};
  const auto view = read_record(s.bytes);
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.error().code, Code::unsupported);
  EXPECT_NE(view.error().message.find("version 9"), std::string::npos);
}

}  // namespace
}  // namespace quire
