// The forward pass on its own, with pages in a flat buffer: a model knows nothing of the cache.
#include "model/model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/sanitized.h"
#include "model/device_weights.h"
#include "model/tiny.h"

namespace quire {
namespace {

// One sequence's blocks, one after the other.
struct FlatKv {
  FlatKv(const Geometry& g, std::uint32_t tokens) : geometry(g) {
    const std::uint32_t blocks = (tokens + g.tokens_per_block - 1) / g.tokens_per_block;
    std::size_t bytes = 0;
    for (const LayerGroup& group : g.groups) {
      tables.emplace_back();
      for (std::uint32_t b = 0; b < blocks; ++b) {
        tables.back().push_back(static_cast<ArenaOffset>(bytes / kArenaUnit));
        bytes += g.block_bytes(group);
      }
    }
    memory.assign(bytes + 256,
                  std::byte{0xff});  // NaN everywhere: what was not written must not be read
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    arena = memory.data() + ((address + 63) / 64 * 64 - address);
  }
  const Geometry& geometry;
  std::vector<std::vector<ArenaOffset>> tables;
  std::vector<std::byte> memory;
  std::byte* arena;
};

std::vector<float> run(Model& model, const Geometry& geometry, std::span<const TokenId> tokens,
                       std::uint32_t chunk) {
  FlatKv kv(geometry, static_cast<std::uint32_t>(tokens.size()));
  const std::uint32_t vocabulary = model.config().vocabulary;
  std::vector<float> logits(tokens.size() * vocabulary);
  for (std::uint32_t at = 0; at < tokens.size(); at += chunk) {
    const auto count =
        std::min<std::uint32_t>(chunk, static_cast<std::uint32_t>(tokens.size()) - at);
    std::vector<std::uint32_t> positions(count), rows(count);
    std::iota(positions.begin(), positions.end(), at);
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<KvSequenceView> sequences;
    for (const auto& table : kv.tables) sequences.push_back({table.data(), 0, count, at});
    std::vector<KvView> views;
    for (std::size_t g = 0; g < geometry.groups.size(); ++g)
      views.push_back(
          {kv.arena, &sequences[g], 1, geometry.tokens_per_block, geometry.groups[g].window});
    model.forward(geometry, {tokens.subspan(at, count), positions, views, rows},
                  logits.data() + std::size_t{at} * vocabulary);
  }
  return logits;
}

std::string model_path(const char* variable, const std::string& name) {
  if (const char* path = std::getenv(variable)) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string base =
      cache && *cache ? cache
                      : std::string(std::getenv("HOME") ? std::getenv("HOME") : "") + "/.cache";
  return base + "/quire/models/" + name;
}

void check_chunks(const std::string& path, std::uint32_t threads) {
  ThreadPool pool(threads);
  auto source = ModelSource::open(path);
  ASSERT_TRUE(source.ok()) << source.error().message;
  auto model = Model::load(source.value(), pool, {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 150; ++i)
    tokens.push_back((i * i % 1000 + 20) % model.value()->config().vocabulary);
  const Geometry geometry = model.value()->geometry(32, find_format("f16").value());
  const std::vector<float> whole = run(*model.value(), geometry, tokens, 512);
  for (const float x : whole) ASSERT_EQ(x - x, 0);
  for (const std::uint32_t chunk : {1u, 7u, 32u, 100u}) {
    const std::vector<float> parts = run(*model.value(), geometry, tokens, chunk);
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0)
        << "chunks of " << chunk;
  }
}

TEST(Model, TinyModelsGiveTheSameBitsInAnyChunks) {
  const std::string path =
      testing::TempDir() + "quire_model_test_" + std::to_string(::getpid()) + ".gguf";
  for (const TinyOptions& tiny :
       {TinyOptions{.type = DType::q4_1}, TinyOptions{.architecture = "gemma3", .layers = 7}}) {
    ASSERT_TRUE(write_tiny_gguf(path, tiny).ok());
    for (const std::uint32_t threads : {1u, 2u, 3u}) check_chunks(path, threads);
  }
  std::filesystem::remove(path);
}

TEST(Model, LoadingTellsHowFarItIs) {
  const std::string path =
      testing::TempDir() + "quire_model_test_" + std::to_string(::getpid()) + ".gguf";
  ASSERT_TRUE(write_tiny_gguf(path, {.type = DType::q4_1}).ok());
  ThreadPool pool(3);
  auto source = ModelSource::open(path);
  ASSERT_TRUE(source.ok()) << source.error().message;
  std::uint64_t last = 0, calls = 0;
  source.value().watch([&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, all);
    last = done;
    ++calls;
  });
  ASSERT_TRUE(Model::load(source.value(), pool, {}).ok());
  EXPECT_GT(calls, 10u);
  // Norms are read on the side.
  EXPECT_GT(static_cast<double>(last), 0.9 * static_cast<double>(source.value().tensor_bytes()));
  std::filesystem::remove(path);
}

TEST(Model, WeightsArePackedForAGpuOnly) {
  const std::string path =
      testing::TempDir() + "quire_model_test_" + std::to_string(::getpid()) + ".gguf";
  ThreadPool pool(1);
  const auto open = [&](DType type) {
    EXPECT_TRUE(write_tiny_gguf(path, {.type = type, .head_dim = 64, .tied_head = false}).ok());
    return ModelSource::open(path);
  };
  const auto source = open(DType::q4_1);
  ASSERT_TRUE(source.ok());
  for (const WeightStorage storage : {WeightStorage::bf16, WeightStorage::packed}) {
    const auto model = Model::load(source.value(), pool, {.weights = storage});
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.error().code, Code::unsupported);
    EXPECT_NE(model.error().message.find("--device cuda"), std::string::npos);
  }
  const auto bytes = [](const ModelSource& of, WeightStorage storage) {
    return device_weight_bytes(of, storage);
  };
  // Query, key and value; out; gate and up; down; embedding and head. 96 inputs take the room of 128.
  const std::uint64_t layer = 512 * 64 + 64 * 256 + 192 * 64 + 64 * 96, heads = 2 * 260 * 64;
  EXPECT_EQ(bytes(source.value(), WeightStorage::bf16), 2 * (2 * layer + heads));
  const auto coded = [](std::uint64_t outputs, std::uint64_t inputs) {
    return outputs / 16 * ((inputs + 127) / 128) * (16 * 128 / 2 + 16 * 4 * 4);
  };
  EXPECT_EQ(bytes(source.value(), WeightStorage::packed),
            2 * (coded(512, 64) + coded(64, 256) + coded(192, 64) + coded(64, 96)) +
                2 * coded(260, 64) + 2 * 512 * 64);  // and room for the largest
  const auto plain = open(DType::bf16);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(bytes(plain.value(), WeightStorage::packed), bytes(plain.value(), WeightStorage::bf16));
  std::filesystem::remove(path);
}

// Sanitizers would take minutes over a whole model's arithmetic.
void check_real(const char* variable, const std::string& name) {
  if (kSanitized) GTEST_SKIP() << "a tiny model does for sanitizers";
  const std::string path = model_path(variable, name);
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no model at " << path;
  check_chunks(path, 2);
}

TEST(Model, SmolLm2GivesTheSameBitsInAnyChunks) {
  check_real("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf");
}

TEST(Model, Gemma3GivesTheSameBitsInAnyChunks) {
  check_real("QUIRE_TEST_GEMMA", "gemma-3-270m-q4_k_m.gguf");
}

}  // namespace
}  // namespace quire
