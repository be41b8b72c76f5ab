#include "engine/convert.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/engine_testing.h"
#include "kernels/encoded.h"

namespace quire {
namespace {

TinyOptions llama() { return {.type = DType::q8_0, .layers = 3, .head_dim = 64}; }

std::vector<TokenId> text(std::uint32_t count) {
  std::vector<TokenId> tokens(count);
  for (std::uint32_t i = 0; i < count; ++i) tokens[i] = 'a' + (i * 7 + i / 5) % 26;
  return tokens;
}

Request asking(std::uint32_t tokens, const char* format, bool convert) {
  Request r{.prompt = text(tokens), .tokens_max = 6, .ignore_end = true};
  if (format) r.kv.storage = std::make_shared<StoragePolicy>(find_format(format).value());
  r.kv.convert = convert;
  return r;
}

// Every page of the converted sequence is what the codec makes of the exact rows; what stays exact is
// those rows.
TEST(Convert, BlocksAreTheEncodingOfExactOnes) {
  TinyRuntime tiny(llama(), {.threads = 2, .kv_format = "f16"});
  Runtime& r = *tiny;
  StoragePolicy way = find_format("int8/kivi-2").value();
  way.skip_layers = {1};
  way.sinks = 20;
  Sequence exact = std::move(r.open_sequence(200).value());
  r.cache().attach(exact, text(140));
  ASSERT_TRUE(Stepper(r).prefill(exact, 140).ok());
  Sequence lossy = std::move(
      r.cache().open({.root = r.tenant_root("", &way).value(), .token_capacity = 200}).value());
  r.cache().attach(lossy, text(140));
  ASSERT_TRUE(convert_blocks(r, exact, lossy, 128).ok());
  EXPECT_EQ(lossy.length(), 128u);

  const Geometry &from = r.cache().geometry(exact.root()), &to = r.cache().geometry(lossy.root());
  ASSERT_EQ(to.groups.size(), 3u);  // encoded, skipped, and the rows of sinks
  for (std::uint32_t g = 0; g < to.groups.size(); ++g) {
    const LayerGroup& group = to.groups[g];
    const std::uint32_t blocks = group.kind == GroupKind::recent ? group.sink_blocks : 4;
    for (std::uint32_t b = 0; b < blocks; ++b)
      for (std::uint32_t i = 0; i < group.lanes(); ++i) {
        const std::uint32_t layer = group.layers[i / group.kv_heads];
        const std::byte* rows =
            arena_at(r.cache().arena(), exact.table(0)[b]) +
            (layer * group.kv_heads + i % group.kv_heads) * from.page_bytes(from.groups[0]);
        const std::byte* page =
            arena_at(r.cache().arena(), lossy.table(g)[b]) + i * to.page_bytes(group);
        if (!group.sealed()) {
          EXPECT_EQ(std::memcmp(page, rows, to.page_bytes(group)), 0);
          continue;
        }
        const PageShape shape = to.page_shape(group);
        const EncodedPart keys =
                              encoded_part(*group.format->keys, Side::keys, shape.rows(Side::keys)),
                          values = encoded_part(*group.format->values, Side::values,
                                                shape.rows(Side::values));
        std::vector<std::byte> wanted(keys.page_bytes + values.page_bytes);
        kEncodedScalar.seal(keys, rows, wanted.data());
        kEncodedScalar.seal(values, rows + from.key_bytes(from.groups[0]),
                            wanted.data() + keys.page_bytes);
        EXPECT_EQ(std::memcmp(page, wanted.data(), wanted.size()), 0) << b << " " << i;
      }
  }
}

TEST(Convert, ARequestGoesOnFromEncodedCopiesOfExactBlocks) {
  TinyEngine tiny(llama(), {.threads = 2, .kv_format = "f16"});
  const auto ask = [&](const char* format, bool convert) {
    auto sink = tiny.submit(asking(150, format, convert));
    tiny.run();
    EXPECT_TRUE(sink->result) << (sink->failure ? sink->failure->message : "");
    return sink;
  };
  const auto cold = ask("hadamard-int2", true);  // nothing to convert: its own chain, computed
  EXPECT_EQ(cold->admission.cached_tokens, 0u);
  const auto exact = ask(nullptr, false);
  EXPECT_EQ(exact->admission.cached_tokens, 0u);
  const auto made = ask("int8", true), again = ask("int8", true);
  EXPECT_EQ(made->admission.cached_tokens, 128u);
  EXPECT_GE(again->admission.cached_tokens, 128u);
  EXPECT_EQ(made->answers[0].ids(), again->answers[0].ids());
  // Its blocks are not those of requests that compute, and their chain wins where it has as much.
  const auto computed = ask("int8", false);
  EXPECT_EQ(computed->admission.cached_tokens, 0u);
  EXPECT_EQ(ask("int8", true)->answers[0].ids(), computed->answers[0].ids());
  const auto plain = ask("hadamard-int2", true);
  EXPECT_EQ(plain->answers[0].ids(), cold->answers[0].ids());
  tiny.expect_empty();
}

// What was converted cannot be computed again: who gives way keeps its blocks and goes on from there.
TEST(Convert, GivingWayChangesNoAnswer) {
  const auto answer = [](std::uint64_t memory, std::uint32_t& preemptions) {
    TinyEngine tiny(llama(), {.threads = 2, .kv_format = "f16", .kv_cache_bytes = memory});
    tiny.submit(request(text_of(150, 1), 1));
    tiny.run();
    const auto make = [](std::uint64_t seed, bool convert) {
      Request r = asking(0, "int8", convert);
      r.prompt = text_of(150, seed);
      r.tokens_max = 900;
      r.priority = convert ? 0 : 1'000'000;  // the others come first
      return r;
    };
    const auto converted = tiny.submit(make(1, true));
    std::vector<std::shared_ptr<MemorySink>> others;
    for (std::uint64_t i = 2; i < 7; ++i) others.push_back(tiny.submit(make(i, false)));
    tiny.run();
    for (const auto& sink : others) EXPECT_TRUE(sink->result);
    EXPECT_TRUE(converted->result) << (converted->failure ? converted->failure->message : "");
    EXPECT_EQ(converted->admission.cached_tokens, 128u);
    preemptions = converted->result ? converted->result->preemptions : 0;
    tiny.expect_empty();
    return converted->answers[0].ids();
  };
  std::uint32_t none = 0, some = 0;
  EXPECT_EQ(answer(4 << 20, some), answer(256 << 20, none));
  EXPECT_EQ(none, 0u);
  EXPECT_GT(some, 0u);
}

TEST(Convert, AnotherSaltHasNothingToConvert) {
  TinyEngine tiny(llama(), {.threads = 2, .kv_format = "f16"});
  tiny.submit(asking(100, nullptr, false));
  tiny.run();
  Request salted = asking(100, "int8", true);
  salted.kv.salt = "mine";
  const auto sink = tiny.submit(std::move(salted));
  tiny.run();
  EXPECT_EQ(sink->admission.cached_tokens, 0u);
}

}  // namespace
}  // namespace quire
