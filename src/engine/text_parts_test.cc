#include "engine/text_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "base/file.h"
#include "tensor/gguf_writer.h"

namespace quire {
namespace {

constexpr TokenId kBos = 1, kEos = 2, kTurn = 3, kTool = 4, kA = 5, kSpace = 6;

// A sentencepiece vocabulary in a file that has just enough around it to be opened; `more` adds
// keys.
Result<TextParts> parts_of(const std::function<void(GgufWriter&)>& more) {
  GgufWriter w;
  w.add("general.architecture", "llama");
  for (const char* key : {"block_count", "context_length", "embedding_length",
                          "feed_forward_length", "attention.head_count"})
    w.add_u32(
        std::string("llama.") + key,
        key == std::string("attention.head_count") || key == std::string("block_count") ? 1 : 32);
  w.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "<turn>", "<tool>", "a", "▁"};
  const std::vector<std::int32_t> types = {2, 3, 3, 3, 3, 1, 1};
  const std::vector<float> scores(tokens.size(), 0);
  w.add("tokenizer.ggml.model", "llama");
  w.add_strings("tokenizer.ggml.tokens", tokens);
  w.add_i32s("tokenizer.ggml.token_type", types);
  w.add_f32s("tokenizer.ggml.scores", scores);
  w.add_u32("tokenizer.ggml.bos_token_id", kBos);
  w.add_u32("tokenizer.ggml.eos_token_id", kEos);
  w.add_u32("tokenizer.ggml.unknown_token_id", 0);
  more(w);
  const std::uint64_t shape[] = {tokens.size(), 32};
  const std::vector<std::byte> zeros(tokens.size() * 32 * sizeof(float));
  w.add_tensor("token_embd.weight", DType::f32, shape, zeros);

  const std::string path =
      testing::TempDir() + "quire_text_parts_" + std::to_string(::getpid()) + ".gguf";
  TRY_STATUS(write_file(path, w.finish()));
  const auto source = ModelSource::open(path);
  std::remove(path.c_str());
  if (!source.ok()) return source.error();
  return read_text_parts(source.value());
}

TEST(TextParts, TokensThatEndATurnOrAToolCallEndGeneration) {
  const auto plain = parts_of([](GgufWriter&) {});
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_THAT(plain.value().tokenizer.end_of_generation(), testing::ElementsAre(kEos));
  const auto parts = parts_of([](GgufWriter& w) {
    w.add_u32("tokenizer.ggml.eot_token_id", kTurn);
    w.add_u32("tokenizer.ggml.eom_token_id", kTool);
  });
  ASSERT_TRUE(parts.ok()) << parts.error().message;
  EXPECT_THAT(parts.value().tokenizer.end_of_generation(),
              testing::ElementsAre(kEos, kTurn, kTool));
}

TEST(TextParts, SpacesAreTreatedAsTheFileSays) {
  const auto encode = [](const std::function<void(GgufWriter&)>& more) {
    const auto parts = parts_of(more);
    EXPECT_TRUE(parts.ok()) << parts.error().message;
    return parts.value().tokenizer.encode(" a  a");
  };
  using testing::ElementsAre;
  EXPECT_THAT(encode([](GgufWriter&) {}), ElementsAre(kSpace, kSpace, kA, kSpace, kSpace, kA));
  EXPECT_THAT(encode([](GgufWriter& w) { w.add_bool("tokenizer.ggml.add_space_prefix", false); }),
              ElementsAre(kSpace, kA, kSpace, kSpace, kA));
  EXPECT_THAT(
      encode([](GgufWriter& w) { w.add_bool("tokenizer.ggml.remove_extra_whitespaces", true); }),
      ElementsAre(kSpace, kA, kSpace, kA));
}

}  // namespace
}  // namespace quire
