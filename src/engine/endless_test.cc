// A text without end on a real model: memory stays what it was, and so does perplexity.
// QUIRE_ENDLESS_TOKENS reads more of it: ./test --long, 200,000.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/sanitized.h"
#include "engine/retain.h"
#include "engine/stepper.h"
#include "text/gguf_vocab_testing.h"

namespace quire {
namespace {

constexpr std::uint32_t kCycle = 2000;  // tokens of text, again and again
constexpr std::uint32_t kWindow = 512;  // far less than a cycle: nothing is remembered of the last
constexpr std::uint32_t kContext = 2048;  // positions start over every 1,500 tokens

TEST(Endless, PerplexityStaysWhereItWas) {
  if (kSanitized) GTEST_SKIP() << "a real model takes too long";
  const std::string path = test_model_path("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf");
  if (path.empty()) GTEST_SKIP() << "set QUIRE_TEST_MODEL to the SmolLM2-135M GGUF file";
  const std::filesystem::path cached =
      test_model_path("NO_SUCH_VARIABLE", "smollm2-135m-instruct-q4_1.gguf");
  const char* const given = std::getenv("QUIRE_TEST_TEXT");
  const auto text = read_file(
      given ? given
            : (cached.parent_path().parent_path() / "text/developers-reference.txt").string());
  if (!text.ok()) GTEST_SKIP() << "scripts/fetch-text gets a text, or set QUIRE_TEST_TEXT";
  const char* const asked = std::getenv("QUIRE_ENDLESS_TOKENS");
  const auto count = static_cast<std::uint32_t>(asked ? std::atoi(asked) : 5000);

  auto opened =
      Runtime::open(path, {.kv_cache_bytes = std::uint64_t{256} << 20, .context = kContext});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  Runtime& r = *opened.value();
  std::vector<TokenId> cycle = r.tokenizer().encode(text.value().substr(20000, 20000), {});
  ASSERT_GE(cycle.size(), kCycle);
  cycle.resize(kCycle);
  const RootId root = r.tenant_root("").value();
  const auto policy = std::make_shared<RetainPolicy>(
      parse_retain_policy("streaming:" + std::to_string(kWindow)).value());
  const std::uint32_t rows = r.geometry().tokens_per_block;
  Retaining retain(r, policy, rows, root);
  Sequence s = std::move(r.cache()
                             .open({.root = root,
                                    .token_capacity = count + kCycle,
                                    .reuse = false,
                                    .publish = false,
                                    .recomputable = false})
                             .value());
  r.cache().attach(s, {});
  std::vector<double> sums;  // by cycle
  std::uint64_t most = 0;
  for (std::uint32_t at = 0; at < count; at += rows) {
    // What stays is decided when a block is full: between steps of a block.
    std::vector<TokenId> part;
    for (std::uint32_t i = 0; i < rows; ++i) part.push_back(cycle[(at + i) % kCycle]);
    const StepItem item{&s, part, Logits::all, &retain};
    const auto logits = Stepper(r).run({&item, 1});
    ASSERT_TRUE(logits.ok()) << logits.error().message;
    const std::size_t vocabulary = r.config().vocabulary;
    for (std::uint32_t i = 0; i < rows; ++i) {
      const auto row = logits.value().subspan(i * vocabulary, vocabulary);
      sums.resize((at + i) / kCycle + 1);
      sums.back() += r.sampler().log_sum_exp(row) - row[cycle[(at + i + 1) % kCycle]];
    }
    if (at >= 2 * kWindow) most = std::max(most, r.cache().bytes(s));
  }
  const Geometry& g = r.geometry();
  const std::uint64_t whole = g.block_bytes(g.groups[0]);
  EXPECT_LE(most, (kWindow / rows + 3) * whole);
  // The first cycle has a beginning; all others are the same text behind the same window.
  ASSERT_GE(count / kCycle, 2u);
  const double second = sums[1] / kCycle;
  std::printf("nll of cycles:");
  for (std::uint32_t c = 0; c < count / kCycle; ++c) {
    const double mean = sums[c] / kCycle;
    std::printf(" %.4f", mean);
    EXPECT_NEAR(mean, second, c == 0 ? 0.1 : 0.02) << "cycle " << c;
  }
  std::printf("\n");
}

}  // namespace
}  // namespace quire
