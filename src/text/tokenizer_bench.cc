// Bytes per second of encoding and decoding, with the vocabularies of the test models (skipped
// where they are absent).
//
//   build/release/src/text_tokenizer_bench
#include <benchmark/benchmark.h>

#include "text/detokenizer.h"
#include "text/gguf_vocab_testing.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

// English: the licence of the repository, over and over.
const std::string& english() {
  static const std::string kText = [] {
    std::string text;
    const auto part = read_file("LICENSE");
    while (part.ok() && text.size() < 1'000'000) text += part.value();
    return text;
  }();
  return kText;
}

const Tokenizer* load(const char* variable, const char* name) {
  const std::string path = test_model_path(variable, name);
  if (path.empty()) return nullptr;
  auto spec = read_gguf_vocab(path);
  return spec.ok() ? new Tokenizer(std::move(Tokenizer::create(std::move(spec.value())).value()))
                   : nullptr;
}
const Tokenizer* smollm2() {
  static const Tokenizer* const kTokenizer =
      load("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf");
  return kTokenizer;
}
const Tokenizer* gemma3() {
  static const Tokenizer* const kTokenizer = load("QUIRE_TEST_GEMMA", "gemma-3-270m-q4_k_m.gguf");
  return kTokenizer;
}

void encode(benchmark::State& state, const Tokenizer* t, const std::string& text) {
  if (t == nullptr || text.empty()) return state.SkipWithError("no model or no text here");
  for (auto _ : state) benchmark::DoNotOptimize(t->encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void english_smollm2(benchmark::State& state) { encode(state, smollm2(), english()); }
void english_gemma3(benchmark::State& state) { encode(state, gemma3(), english()); }
// The worst there is: one word of a megabyte.
void one_letter_smollm2(benchmark::State& state) {
  encode(state, smollm2(), std::string(1'000'000, 'a'));
}
void one_letter_gemma3(benchmark::State& state) {
  encode(state, gemma3(), std::string(1'000'000, 'a'));
}

void detokenize_smollm2(benchmark::State& state) {
  const Tokenizer* t = smollm2();
  if (t == nullptr || english().empty()) return state.SkipWithError("no model or no text here");
  const std::vector<TokenId> ids = t->encode(english());
  for (auto _ : state) {
    Detokenizer detokenizer(*t);
    for (const TokenId id : ids) benchmark::DoNotOptimize(detokenizer.add(id));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids.size()));
}

BENCHMARK(english_smollm2)->Unit(benchmark::kMillisecond);
BENCHMARK(english_gemma3)->Unit(benchmark::kMillisecond);
BENCHMARK(one_letter_smollm2)->Unit(benchmark::kMillisecond);
BENCHMARK(one_letter_gemma3)->Unit(benchmark::kMillisecond);
BENCHMARK(detokenize_smollm2)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quire
