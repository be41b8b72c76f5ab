#include "model/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "model/arch/arch.h"
#include "model/lacks.h"
#include "model/model.h"
#include "model/tiny.h"

namespace quire {
namespace {

std::uint32_t eight(std::uint32_t) { return 8; }

std::vector<std::int64_t> stored(HeadRows heads, std::uint64_t rows, HeadWidth width) {
  std::vector<std::int64_t> all;
  for (std::uint64_t i = 0; i < heads.padded(rows, width); ++i)
    all.push_back(static_cast<std::int64_t>(heads.stored(i, width)));  // padding: -1
  return all;
}

TEST(HeadRows, PairsAreMovedHalfAHeadApartAndEachHalfIsPadded) {
  using Rows = std::vector<std::int64_t>;
  EXPECT_EQ(stored({}, 3, eight), (Rows{0, 1, 2}));
  EXPECT_EQ(stored({.dim = 4, .rotated = true, .interleaved = 4}, 8, unpadded),
            (Rows{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(stored({.dim = 6, .rotated = true, .interleaved = 4}, 12, unpadded),
            (Rows{0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11}));
  EXPECT_EQ(stored({.dim = 4, .rotated = true}, 8, eight),
            (Rows{0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1}));
  EXPECT_EQ(stored({.dim = 4, .rotated = true, .interleaved = 4}, 4, eight),
            (Rows{0, 2, -1, -1, 1, 3, -1, -1}));
  EXPECT_EQ(stored({.dim = 4}, 4, eight), (Rows{0, 1, 2, 3, -1, -1, -1, -1}));
}

class TinyFile : public ::testing::Test {
 protected:
  ~TinyFile() override { std::remove(path_.c_str()); }
  ModelSource open(const TinyOptions& options) {
    EXPECT_TRUE(write_tiny_gguf(path_, options).ok());
    auto source = ModelSource::open(path_);
    EXPECT_TRUE(source.ok()) << source.error().message;
    return std::move(source.value());
  }
  std::string path_ =
      ::testing::TempDir() + "quire_weights_test_" + std::to_string(::getpid()) + ".gguf";
};

TEST_F(TinyFile, TensorsAreStackedOneAfterTheOtherOrInTurn) {
  const ModelSource source = open({});
  const HeadRows turned{.dim = 16, .rotated = true, .interleaved = 16}, straight{.dim = 16};
  const auto qkv = StackedRows::make(source,
                                     {{"blk.0.attn_q.weight", turned},
                                      {"blk.0.attn_k.weight", turned},
                                      {"blk.0.attn_v.weight", straight}},
                                     0);
  ASSERT_TRUE(qkv.ok());
  EXPECT_EQ(qkv.value().rows, 64u + 32 + 32);
  const auto at = [](const StackedRows& rows, std::uint64_t row) {
    return std::pair(rows.at(row).tensor, rows.at(row).row);
  };
  EXPECT_EQ(at(qkv.value(), 8), std::pair(std::size_t{0}, std::uint64_t{1}));
  EXPECT_EQ(at(qkv.value(), 64 + 17), std::pair(std::size_t{1}, std::uint64_t{18}));
  EXPECT_EQ(at(qkv.value(), 96 + 17), std::pair(std::size_t{2}, std::uint64_t{17}));
  const auto pair =
      StackedRows::make(source, {{"blk.0.ffn_gate.weight"}, {"blk.0.ffn_up.weight"}}, 8);
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(at(pair.value(), 7), std::pair(std::size_t{0}, std::uint64_t{7}));
  EXPECT_EQ(at(pair.value(), 8), std::pair(std::size_t{1}, std::uint64_t{0}));
  EXPECT_EQ(at(pair.value(), 17), std::pair(std::size_t{0}, std::uint64_t{9}));
  EXPECT_FALSE(StackedRows::make(source, {{"blk.0.attn_q_norm.weight"}}, 0).ok());
}

// Every tensor of every architecture is read once, and none that its table does not have.
struct Counting {
  struct Nothing {};
  std::vector<std::string> names;
  void add(const std::vector<TensorPart>& parts) {
    for (const TensorPart& part : parts) names.push_back(part.name);
  }
  Status matrix(const MatrixParts& of, Nothing&) { return add(of.parts), Status(); }
  Status tied_head(const MatrixParts&, Nothing&) { return {}; }
  Status vector(const std::vector<TensorPart>& parts, bool, Nothing&) {
    return add(parts), Status();
  }
};

TEST_F(TinyFile, TheLoaderReadsWhatTheTableOfTensorsHas) {
  for (const Architecture* each : architectures())
    for (const bool tied : {true, false}) {
      const std::string_view architecture = each->name;
      const ModelSource source = open({.architecture = architecture, .tied_head = tied});
      Counting sink;
      WeightsIn<Counting::Nothing, Counting::Nothing> nothing;
      ASSERT_TRUE(load_weights(sink, source.config(), nothing).ok());
      std::vector<std::string> wanted = tensor_names(source.config());
      std::ranges::sort(sink.names);
      std::ranges::sort(wanted);
      EXPECT_EQ(sink.names, wanted) << architecture;
    }
}

TEST_F(TinyFile, WhatADeviceDoesNotComputeIsRefusedByName) {
  const auto refusal = [&](const ModelSource& source, DeviceKind device) {
    const Status checked = check_layers(source, device);
    return checked.ok() ? "" : checked.error().message;
  };
  EXPECT_NE(refusal(open({.feed_forward = 96}), DeviceKind::cuda)
                .find("layer 0 needs an inner width of no multiple of 64"),
            std::string::npos);
  EXPECT_NE(refusal(open({.feed_forward = 64, .query_heads = 16, .kv_heads = 1}), DeviceKind::cuda)
                .find("layer 0 needs more than 8 query heads"),
            std::string::npos);
  EXPECT_NE(refusal(open({.head_dim = 8}), DeviceKind::cpu)
                .find("layer 0 needs heads of no multiple of 16"),
            std::string::npos);
  // The same file with one number changed.
  open({});
  std::string bytes = read_file(path_).value();
  const std::string key = "llama.attention.value_length";
  bytes[bytes.find(key) + key.size() + 4] = 8;
  ASSERT_TRUE(write_file(path_, bytes).ok());
  const auto changed = ModelSource::open(path_);
  ASSERT_TRUE(changed.ok()) << changed.error().message;
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda})
    EXPECT_NE(refusal(changed.value(), device).find("values of another size than keys"),
              std::string::npos);
}

TEST_F(TinyFile, GeometryTakesEveryLayersOwnDimensions) {
  ModelConfig config = open({.layers = 3}).config();
  config.per_layer[1].attn.kv_heads = 4;
  config.per_layer[1].attn.key_dim = config.per_layer[1].attn.value_dim = 32;
  const Geometry geometry = make_geometry(config, 32, find_format("f16").value());
  ASSERT_EQ(geometry.groups.size(), 2u);
  EXPECT_EQ(geometry.groups[0].layers, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(geometry.groups[1].kv_heads, 4u);
  EXPECT_EQ(geometry.groups[1].key_dim, 32u);
}

}  // namespace
}  // namespace quire
