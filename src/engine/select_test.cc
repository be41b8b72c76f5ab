// Reading some pages only, end to end, on tiny models: what a masked model computes, whatever the
// chunks, the neighbours and the cache.
#include <gtest/gtest.h>

#include "base/sanitized.h"
#include "engine/engine_testing.h"
#include "engine/masked_testing.h"
#include "engine/selecting.h"

namespace quire {
namespace {

constexpr std::uint32_t kBlock = 16;

std::shared_ptr<const SelectPolicy> policy(std::string_view text) {
  auto made = parse_select_policy(text);
  EXPECT_TRUE(made.ok()) << text << ": " << (made.ok() ? "" : made.error().message);
  return std::make_shared<SelectPolicy>(made.value());
}

TinyOptions llama(DType type = DType::q8_0) {
  return {.type = type, .layers = 4, .query_heads = 4, .kv_heads = 2, .head_dim = 32};
}

RuntimeOptions with(std::string_view select, std::string format = "auto") {
  RuntimeOptions o{.kv_format = std::move(format), .tokens_per_block = kBlock};
  if (!select.empty()) o.kv_select = policy(select);
  return o;
}

struct SelectedRead {
  std::vector<float> logits;  // of the answer's tokens, and of the prompt's last
  ChosenPages chosen;
  std::uint64_t read = 0, whole = 0;
};

// A prompt in chunks, and an answer `together` tokens at a time.
SelectedRead run(Runtime& r, std::span<const TokenId> prompt, std::span<const TokenId> answer,
                 std::uint32_t chunk, std::uint32_t together = 1) {
  SelectedRead out;
  const RootId root = r.tenant_root("").value();
  std::optional<Selecting> select;
  if (r.select()) select.emplace(r, *r.select(), prompt.size(), root);
  Sequence s =
      std::move(r.cache()
                    .open({.root = root, .token_capacity = 2048, .reuse = false, .publish = false})
                    .value());
  r.cache().attach(s, prompt);
  const auto feed = [&](std::span<const TokenId> tokens, std::uint32_t rows, bool keep) {
    for (std::size_t at = 0; at < tokens.size(); at += rows) {
      StepItem item{&s, tokens.subspan(at, std::min<std::size_t>(rows, tokens.size() - at)),
                    keep ? Logits::all : Logits::last};
      item.program = select ? &*select : nullptr;
      item.chosen = &out.chosen;
      const auto logits = Stepper(r).run({&item, 1});
      ASSERT_TRUE(logits.ok()) << logits.error().message;
      if (keep || at + rows >= tokens.size())
        out.logits.insert(out.logits.end(), logits.value().begin(), logits.value().end());
    }
  };
  feed(prompt, chunk, false);
  feed(answer, together, true);
  if (select) {
    out.read = select->bytes_read();
    out.whole = select->bytes_whole();
  }
  return out;
}

// Prompts of 300 tokens end within a block.
TEST(Select, ComputesWhatAMaskedModelDoes) {
  const std::vector<TokenId> prompt = printable_of(300, 1), answer = printable_of(40, 2);
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  const TinyFile file(llama(DType::f32));
  for (const char* way : {"quest:64", "xattention:0.5", "vertical-slash:17+17"}) {
    SCOPED_TRACE(way);
    TinyRuntime r(llama(DType::f32), with(way, "f32"));
    const SelectedRead got = run(*r, prompt, answer, 64);
    const bool answers = policy(way)->answers();
    ASSERT_FALSE(got.chosen.empty());
    std::uint64_t read = 0, there = 0;
    for (const auto& [first, lanes] : got.chosen)
      for (const auto& pages : lanes) {
        read += pages.size();
        there += first / kBlock;
      }
    EXPECT_LT(read, there * 4 / 5);
    MaskedLlama reference(file.path());
    reference.run(all, [&](std::uint32_t layer, std::uint32_t head, std::uint32_t q,
                           std::uint32_t k) {
      if (answers != (q >= 300) || (answers && layer < kDenseLayers) || q / kBlock == k / kBlock)
        return true;
      const auto chose = got.chosen.find(answers ? q : q / kBlock * kBlock);
      if (chose == got.chosen.end() || chose->second.empty()) return true;
      return std::ranges::binary_search(chose->second[layer * 2 + head], k / kBlock);
    });
    std::vector<float> want;
    for (std::size_t i = 299; i < all.size(); ++i)
      want.insert(want.end(), reference.logits[i].begin(), reference.logits[i].end());
    EXPECT_LT(difference(want, got.logits), 1e-4);
  }
}

TEST(Select, ReadingEverythingChangesNoBit) {
  const std::vector<TokenId> prompt = printable_of(300, 1), answer = printable_of(40, 2);
  for (const char* format : {"f16", "hadamard-int4"}) {
    TinyRuntime plain(llama(), with("", format));
    const SelectedRead want = run(*plain, prompt, answer, 64);
    for (const char* way : {"quest:400", "xattention:1"}) {
      TinyRuntime r(llama(), with(way, format));
      EXPECT_EQ(run(*r, prompt, answer, 64).logits, want.logits) << way << ' ' << format;
    }
    for (const char* way : {"quest:64", "xattention:0.6", "vertical-slash:17+17"}) {
      TinyRuntime r(llama(), with(way, format));
      EXPECT_NE(run(*r, prompt, answer, 64).logits, want.logits) << way << ' ' << format;
    }
  }
}

TEST(Select, ChunksThreadsAndInstructionsChangeNoBit) {
  const std::vector<TokenId> prompt = printable_of(300, 1), answer = printable_of(40, 2);
  for (const char* format : {"hadamard-int4", "f16"}) {
    if (kSanitized && std::string_view(format) == "f16") break;
    for (const char* way : {"quest:64", "xattention:0.6", "vertical-slash:17+17"}) {
      SCOPED_TRACE(std::string(way) + ' ' + format);
      TinyRuntime r(llama(), with(way, format));
      const SelectedRead want = run(*r, prompt, answer, 512);
      for (const std::uint32_t chunk : {16u, 48u, 112u}) {
        const SelectedRead got = run(*r, prompt, answer, chunk);
        EXPECT_EQ(got.logits, want.logits) << chunk;
        EXPECT_EQ(got.chosen, want.chosen) << chunk;
      }
      RuntimeOptions others = with(way, format);
      others.threads = 3;
      if (!kSanitized) others.isa = Isa::scalar;
      TinyRuntime other(llama(), others);
      EXPECT_EQ(run(*other, prompt, answer, 64).logits, want.logits);
      if (std::string_view(way) == "quest:64" && r->geometry().exact()) {
        EXPECT_EQ(run(*r, prompt, answer, 300, 7).logits, want.logits) << "several at a time";
      }
    }
  }
}

TEST(Select, WindowLayersAreLeftAlone) {
  const TinyOptions gemma{
      .architecture = "gemma3", .type = DType::q8_0, .layers = 7, .head_dim = 32};
  const std::vector<TokenId> prompt = printable_of(200, 1), answer = printable_of(20, 2);
  TinyRuntime plain(gemma, with(""));
  const SelectedRead want = run(*plain, prompt, answer, 64);
  for (const char* way : {"quest:400", "quest:48", "xattention:1", "xattention:0.5"}) {
    SCOPED_TRACE(way);
    TinyRuntime r(gemma, with(way));
    const SelectedRead got = run(*r, prompt, answer, 64);
    EXPECT_EQ(got.logits == want.logits,
              std::string_view(way) == "quest:400" || std::string_view(way) == "xattention:1");
    EXPECT_EQ(run(*r, prompt, answer, 32).logits, got.logits);
  }
}

TEST(Select, TellsWhatItRead) {
  TinyRuntime r(llama(), with("quest:64", "f16"));
  const SelectedRead got = run(*r, printable_of(300, 1), printable_of(8, 2), 300);
  // 18 pages before token 300 to 303, 19 before the others; 4 lanes read them all, 4 read 4.
  const Geometry& g = r->geometry();
  const std::uint64_t pages = 4 * 18 + 4 * 19;
  EXPECT_EQ(got.whole, 8 * pages * g.page_bytes(g.groups[0]));
  EXPECT_EQ(got.read, (4 * pages + 4 * 8 * 4) * g.page_bytes(g.groups[0]) +
                          8 * pages * 2 * 32 * sizeof(float));
}

TEST(Select, APromptThatIsCachedIsFoundInWholeBlocks) {
  for (const char* way : {"quest:64", "xattention:0.6"}) {
    SCOPED_TRACE(way);
    TinyRuntime r(llama(), with(way, "f16"));
    const std::vector<TokenId> prompt = printable_of(300, 1);
    const GenerateOptions o{.tokens_max = 40, .ignore_end = true};
    const auto cold = client_generate(*r, prompt, o), warm = client_generate(*r, prompt, o);
    ASSERT_TRUE(cold.ok() && warm.ok()) << cold.error().message;
    EXPECT_EQ(warm.value().answers[0].tokens, cold.value().answers[0].tokens);
    EXPECT_EQ(warm.value().timings.cached_tokens, 288u);
    // The answer is nobody else's, as reading it would not have computed it.
    std::vector<TokenId> more = prompt;
    const auto& tokens = cold.value().answers[0].tokens;
    more.insert(more.end(), tokens.begin(), tokens.end());
    const auto next = client_generate(*r, more, o);
    ASSERT_TRUE(next.ok());
    EXPECT_LE(next.value().timings.cached_tokens, 300u);
    r->cache().clear(true);
    const auto alone = naive_generate(*r, more, o);
    EXPECT_EQ(next.value().answers[0].tokens, alone.value().answers[0].tokens);
  }
}

// Requests that select in different ways, and some that do not, with memory for some of them only.
TEST(SelectEngine, NeighboursAndPreemptionChangeNoAnswer) {
  const char* const ways[] = {"quest:64", "", "xattention:0.6", "quest:20%",
                              "vertical-slash:17+17"};
  const auto make = [&](Runtime& r, std::uint32_t i) {
    Request q = request(printable_of(150 + 20 * i, i), 200);
    q.choices = 1 + i % 2;
    q.sampling = {.temperature = i % 2 ? 1.f : 0.f, .seed = i};
    if (*ways[i % 5] == 0) return q;
    const auto p = policy(ways[i % 5]);
    if (p->answers()) {
      q.kv.select = p;
    } else {
      auto storage = std::make_shared<StoragePolicy>(r.storage());
      storage->prefill = p->prefill;
      q.kv.storage = std::move(storage);
    }
    return q;
  };
  for (const std::uint64_t bytes : {std::uint64_t{64} << 20, std::uint64_t{4} << 20}) {
    RuntimeOptions options = with("");
    options.kv_cache_bytes = bytes;
    TinyEngine e(llama(), options, {.step_tokens = 128});
    std::vector<std::shared_ptr<MemorySink>> sinks;
    for (std::uint32_t i = 0; i < (kSanitized ? 10 : 15); ++i)
      sinks.push_back(e.submit(make(*e.runtime, i)));
    e.run();
    std::uint32_t preemptions = 0;
    for (std::uint32_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_TRUE(sinks[i]->result)
          << (sinks[i]->failure ? sinks[i]->failure->message : "not over");
      TinyRuntime alone(llama(), with(ways[i % 5]));
      const Request q = make(*alone, i);
      const auto wanted = naive_generate(*alone, q.prompt, alone_options(q));
      ASSERT_TRUE(wanted.ok()) << wanted.error().message;
      for (std::size_t c = 0; c < sinks[i]->answers.size(); ++c)
        EXPECT_EQ(sinks[i]->answers[c].ids(), wanted.value().answers[c].tokens) << "choice " << c;
      EXPECT_EQ(sinks[i]->result->kv_bytes_read, wanted.value().timings.kv_bytes_read);
      EXPECT_EQ(sinks[i]->result->kv_bytes_read > 0, q.kv.select != nullptr);
      preemptions += sinks[i]->result->preemptions;
    }
    EXPECT_TRUE(preemptions > 0 || kSanitized || bytes == std::uint64_t{64} << 20);
    e.expect_empty();
  }
}

TEST(SelectEngine, RefusesWhatCannotBeCombined) {
  TinyRuntime r(llama(), with(""));
  const RetainPolicy keeps = parse_retain_policy("knorm:20%").value();
  EXPECT_TRUE(r->check_select(*policy("quest:64")).ok());
  EXPECT_FALSE(r->check_select(*policy("quest:64"), nullptr, &keeps).ok());
  EXPECT_TRUE(r->check_select(*policy("xattention:0.9"), nullptr, &keeps).ok());
  EXPECT_FALSE(r->check_select(*policy("quest:64"), nullptr, nullptr, 2).ok());
  StoragePolicy recent = find_format("int8").value();
  recent.recent_exact = 32;
  EXPECT_FALSE(r->check_select(*policy("quest:64"), &recent).ok());
  const StoragePolicy pairs = find_format("minicache").value();
  EXPECT_FALSE(r->check_select(*policy("quest:64"), &pairs).ok());
  EXPECT_FALSE(r->check_retain(parse_retain_policy("knorm:20%").value(), &pairs).ok());
  Request q = request(printable_of(50, 1));
  q.beams = 2;
  q.kv.select = policy("quest:64");
  EXPECT_EQ(prepare_job(*r, {}, std::move(q), nullptr).failure.kind, FailureKind::invalid);
}

}  // namespace
}  // namespace quire
