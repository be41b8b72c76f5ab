// Any JSON as the fields of a chat request that say what the answer must look like: it is refused,
// or tokens that its mask allows are accepted.
#include <cstdint>

#include "server/dialect/openai/openai_parse.h"
#include "server/grammar_masks.h"
#include "text/grammar_testing.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer = byte_tokenizer();
  static const auto vocabulary = static_cast<std::uint32_t>(tokenizer.size());
  static GrammarCompiler compiler(tokenizer, vocabulary, {.kept = 4, .kept_bytes = 8 << 20});

  auto body = parse_json({reinterpret_cast<const char*>(data), size});
  if (!body.ok() || !body.value().is_object()) return 0;
  body.value()["model"] = "m";
  body.value()["messages"] = Json::array({{{"role", "user"}, {"content", "x"}}});
  GenerationRequest asked;
  if (openai::parse_chat(body.value(), {.vocabulary = vocabulary}, asked)) return 0;
  if (asked.grammar.kind == AnswerGrammar::Kind::none)
    asked.grammar =
        tool_call_grammar(asked, answer_format(size % 2 ? "tools [TOOL_CALLS]" : ""), tokenizer);
  if (asked.grammar.kind == AnswerGrammar::Kind::none) return 0;
  const auto grammar = grammar_of(asked.grammar);
  if (!grammar.ok()) return 0;
  const auto compiled = compiler.compile(grammar.value());
  if (!compiled.ok()) {
    CHECK(!compiled.error().message.empty());
    return 0;
  }
  GrammarMatcher m = compiled.value().start();
  std::uint32_t random = static_cast<std::uint32_t>(size);
  for (int i = 0; i < 24 && !m.over(); ++i) {
    const std::vector<TokenId> may = allowed(m, vocabulary);
    if (may.empty()) break;
    random = random * 1664525 + 1013904223;
    CHECK(m.accept(may[(random >> 8) % may.size()]));
  }
  return 0;
}
