// kv/tier/disk_testing.h - a DiskStore over FaultyFiles, filled with TestBlocks by number.
//
//   FaultyFiles disk;
//   TestStore store(disk, {.volume_bytes = 64 << 10});
//   EXPECT_EQ(store.write(7), TierOutcome::ok);
//   EXPECT_EQ(store.read(7), TierOutcome::ok);   // aborts if the bytes are not those of block 7
#pragma once

#include <memory>
#include <vector>

#include "kv/tier/disk_store.h"
#include "kv/tier/faulty_files.h"
#include "kv/tier/record_testing.h"

namespace quire {

inline RecordWrite write_of(const TestBlock& block) {
  return {.of = block.identity(),
          .segments = block.head().segments,
          .bytes = block.spans(),
          .recompute_us = block.head().recompute_us};
}

struct TestStoreOptions {
  std::uint64_t capacity_bytes = UINT64_MAX, volume_bytes = std::uint64_t{64} << 20;
};

class TestStore {
 public:
  explicit TestStore(FaultyFiles& disk, const TestStoreOptions& options = {},
                     const TestBlockShape& shape = {})
      : disk_(disk), options_(options), shape_(shape) {
    reopen();
  }

  void reopen() {
    store_.reset();
    auto store = DiskStore::open(disk_, {.folder = {.path = "kv"},
                                         .capacity_bytes = options_.capacity_bytes,
                                         .volume_bytes = options_.volume_bytes});
    if (store.ok()) store_ = std::move(store.value());
    CHECK(store_ != nullptr || disk_.dead());
  }
  bool is_open() const { return store_ != nullptr; }
  DiskStore& store() { return *store_; }
  TestBlock block(std::uint64_t number) const { return TestBlock(number, shape_); }

  TierOutcome write(std::uint64_t number) { return write(block(number)); }
  TierOutcome write(const TestBlock& block) {
    const RecordWrite write = write_of(block);
    TierOutcome outcome = TierOutcome::failed;
    store_->write({&write, 1}, {&outcome, 1});
    return outcome;
  }

  // Of all segments: the worst outcome. A read that claims success with other bytes aborts.
  TierOutcome read(std::uint64_t number) {
    const TestBlock b = block(number);
    std::vector<std::vector<std::byte>> to(b.segments().size());
    std::vector<SegmentRead> reads;
    for (std::uint32_t i = 0; i < to.size(); ++i) {
      to[i].resize(b.segments()[i].size());
      reads.push_back({b.identity(), i, to[i]});
    }
    TierOutcome worst = TierOutcome::ok;
    std::size_t ends = 0;
    store_->read(reads, [&](ReadEnd end) {
      ++ends;
      if (end.outcome != TierOutcome::ok)
        worst = end.outcome;
      else
        CHECK(to[end.read] == b.segments()[end.read]);
    });
    CHECK(ends == reads.size());
    return worst;
  }

 private:
  FaultyFiles& disk_;
  TestStoreOptions options_;
  TestBlockShape shape_;
  std::unique_ptr<DiskStore> store_;
};

}  // namespace quire
