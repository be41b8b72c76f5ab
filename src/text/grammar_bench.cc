// What a grammar costs: compiling it, and per token the mask and the step, with SmolLM2's
// vocabulary (skipped where the model is absent).
//
//   build/release/src/text_grammar_bench
#include <benchmark/benchmark.h>

#include "text/gguf_vocab_testing.h"
#include "text/grammar_compiler.h"

namespace quire {
namespace {

const Tokenizer* smollm2() {
  static const Tokenizer* const kTokenizer = []() -> const Tokenizer* {
    const std::string path = test_model_path("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf");
    if (path.empty() || !GrammarCompiler::available()) return nullptr;
    return new Tokenizer(std::move(Tokenizer::create(read_gguf_vocab(path).value()).value()));
  }();
  return kTokenizer;
}

const char* const kSchema = R"({"type":"object","properties":{"name":{"type":"string"},
  "age":{"type":"integer","minimum":0,"maximum":150},"role":{"enum":["admin","user","guest"]},
  "address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string",
  "pattern":"^[0-9]{5}$"}},"required":["street","zip"]},"tags":{"type":"array","items":{"type":
  "string"}}},"required":["name","age","role","address","tags"]})";
const char* const kAnswer =
    R"({"name": "Ada Lovelace, countess of Lovelace", "age": 36, "role": "admin", "address": )"
    R"({"street": "12 St James's Square, London", "zip": "01234"}, "tags": ["mathematics", )"
    R"("poetical science", "the analytical engine, which weaves algebraic patterns"]})";

Grammar of_schema() { return Grammar::from_json_schema(parse_json(kSchema).value()).value(); }
Grammar of_tools() {
  const ToolShape tools[] = {{"save", parse_json(kSchema).value()}};
  return Grammar::tool_calls(tools, {.required = false}).value();
}

void tokens(benchmark::State& state, const Grammar& grammar, std::string text) {
  const Tokenizer* t = smollm2();
  if (t == nullptr) return state.SkipWithError("no model or no xgrammar here");
  const auto vocabulary = static_cast<std::uint32_t>(t->size());
  GrammarCompiler compiler(*t, vocabulary);
  const CompiledGrammar compiled = compiler.compile(grammar).value();
  const std::vector<TokenId> ids = t->encode(text);
  std::vector<std::uint32_t> bits((vocabulary + 31) / 32);
  for (auto _ : state) {
    GrammarMatcher m = compiled.start();
    for (const TokenId id : ids) {
      m.fill(bits);
      CHECK(m.accept(id));
    }
  }
  state.counters["us/token"] = benchmark::Counter(
      static_cast<double>(ids.size()) * 1e-6,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["bytes"] = static_cast<double>(compiled.bytes());
}

void schema_tokens(benchmark::State& state) { tokens(state, of_schema(), kAnswer); }
void object_tokens(benchmark::State& state) { tokens(state, Grammar::json_object(), kAnswer); }
void regex_tokens(benchmark::State& state) {
  tokens(state, Grammar::from_regex("([A-Z][a-z]+ ){1,20}[0-9]{3,}").value(),
         "Ada Lovelace Charles Babbage Alan Turing 12345");
}
void text_before_tools_tokens(benchmark::State& state) {
  tokens(state, of_tools(), "I shall look this up, and then <b>tell</b> you what was found.");
}

void compile(benchmark::State& state, const Grammar& grammar) {
  const Tokenizer* t = smollm2();
  if (t == nullptr) return state.SkipWithError("no model or no xgrammar here");
  for (auto _ : state) {
    state.PauseTiming();
    GrammarCompiler compiler(*t, static_cast<std::uint32_t>(t->size()));
    CHECK(compiler.compile(Grammar::from_regex("x").value()).ok());  // reads the vocabulary
    state.ResumeTiming();
    CHECK(compiler.compile(grammar).ok());
  }
}
void compile_schema(benchmark::State& state) { compile(state, of_schema()); }
void compile_tools(benchmark::State& state) { compile(state, of_tools()); }

BENCHMARK(schema_tokens);
BENCHMARK(object_tokens);
BENCHMARK(regex_tokens);
BENCHMARK(text_before_tools_tokens);
BENCHMARK(compile_schema)->Unit(benchmark::kMillisecond);
BENCHMARK(compile_tools)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quire
