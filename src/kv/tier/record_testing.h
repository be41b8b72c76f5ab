// kv/tier/record_testing.h - made-up blocks whose bytes are a function of their number, for tests.
//
//   const TestBlock block(7, {.segments = 3, .segment_bytes = 96});
//   store.write(block.write()); ... EXPECT_TRUE(block.holds(segment, bytes));
#pragma once

#include <memory>
#include <vector>

#include "base/random.h"
#include "kv/tier/record.h"

namespace quire {

struct TestBlockShape {
  std::uint32_t tokens = 4, segments = 2;
  std::size_t segment_bytes = 96;
};

class TestBlock {
 public:
  explicit TestBlock(std::uint64_t number, const TestBlockShape& shape = {}) {
    auto identity = std::make_shared<RecordIdentity>();
    Random random(number);
    fill(std::as_writable_bytes(std::span(identity->key.bytes)), random);
    identity->name = RecordName::of(identity->key);
    identity->layout = sha256("layout");
    for (std::uint32_t i = 0; i < shape.tokens; ++i)
      identity->tokens.push_back(static_cast<TokenId>(random.next()));
    identity_ = identity;
    for (std::uint32_t i = 0; i < shape.segments; ++i)
      fill(segments_.emplace_back(shape.segment_bytes), random);
  }

  const std::shared_ptr<const RecordIdentity>& identity() const { return identity_; }
  const RecordName& name() const { return identity_->name; }
  RecordHead head() const {
    RecordHead head{.identity = *identity_, .recompute_us = 1000};
    for (std::uint16_t i = 0; i < segments_.size(); ++i)
      head.segments.push_back({0, i, 1, segments_[i].size()});
    return head;
  }
  std::vector<std::span<const std::byte>> spans() const {
    return {segments_.begin(), segments_.end()};
  }
  std::vector<std::byte> encoded(const Seal* seal = nullptr) const {
    std::vector<std::byte> bytes(record_bytes(head()));
    encode_record(head(), spans(), bytes, seal);
    return bytes;
  }
  const std::vector<std::vector<std::byte>>& segments() const { return segments_; }

 private:
  static void fill(std::span<std::byte> to, Random& random) {
    for (std::byte& b : to) b = static_cast<std::byte>(random.next());
  }
  std::shared_ptr<const RecordIdentity> identity_;
  std::vector<std::vector<std::byte>> segments_;
};

}  // namespace quire
