#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/gguf_vocab_testing.h"
#include "text/grammar_testing.h"

namespace quire {
namespace {

Json json(std::string_view text) { return parse_json(text).value(); }

class GrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!GrammarCompiler::available()) GTEST_SKIP() << "built without xgrammar";
  }

  CompiledGrammar compiled(const Result<Grammar>& g) {
    if (!g.ok()) ADD_FAILURE() << g.error().message;
    auto c = compiler_.compile(g.value());
    if (!c.ok()) ADD_FAILURE() << c.error().message;
    return c.value();
  }
  CompiledGrammar schema(std::string_view text, bool strict = false) {
    return compiled(Grammar::from_json_schema(json(text), {.strict = strict}));
  }
  std::string refusal(const Result<Grammar>& g) {
    if (!g.ok()) return g.error().message;
    const auto c = compiler_.compile(g.value());
    return c.ok() ? "" : c.error().message;
  }

  const Tokenizer tokenizer_ = byte_tokenizer();
  const std::uint32_t vocabulary_ = static_cast<std::uint32_t>(tokenizer_.size());
  GrammarCompiler compiler_{tokenizer_, vocabulary_};
};

struct SchemaCase {
  const char* name;
  const char* schema;
  std::vector<const char*> whole, not_whole;
};

const SchemaCase kSchemas[] = {
    {"nested objects keep the order of the schema",
     R"({"type":"object","properties":{"b":{"type":"object","properties":{"c":{"type":"null"}},
         "required":["c"]},"a":{"type":"boolean"}},"required":["b","a"]})",
     {R"({"b": {"c": null}, "a": true})"},
     {R"({"a": true, "b": {"c": null}})", R"({"b": {}, "a": true})",
      R"({"b": {"c": null}, "a": true, "d": 1})", R"({"b": {"c": null}})"}},
    {"properties that are not required may be left out",
     R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
         "required":["b"]})",
     {R"({"b": 2})", R"({"a": 1, "b": 2})"},
     {R"({"a": 1})", R"({})"}},
    {"enum and const",
     R"({"type":"object","properties":{"e":{"enum":["red","gr\"een",3,null]},"c":{"const":"x"}},
         "required":["e","c"]})",
     {R"({"e": "red", "c": "x"})", R"({"e": "gr\"een", "c": "x"})", R"({"e": 3, "c": "x"})",
      R"({"e": null, "c": "x"})"},
     {R"({"e": "blue", "c": "x"})", R"({"e": "red", "c": "y"})"}},
    {"arrays have as many items as they should",
     R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1, 2, 3]"},
     {"[]", "[1, 2, 3, 4]", R"(["a"])", "[1,2]"}},
    {"tuples",
     R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false})",
     {R"(["a", 1])"},
     {R"([1, "a"])", R"(["a", 1, 2])"}},
    {"references, also to the schema itself",
     R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[
         {"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/node"})",
     {R"({"v": 1, "next": null})", R"({"v": 1, "next": {"v": 2, "next": null}})"},
     {R"({"v": 1})", R"({"v": 1, "next": {"v": 2}})"}},
    {"patterns",
     R"({"type":"string","pattern":"^[A-Z]{2}-[0-9]+$"})",
     {R"("AB-1")", R"("ZZ-0123")"},
     {R"("A-1")", R"("AB-")", R"("xAB-1")"}},
    {"patterns with counted groups",
     R"({"type":"string","pattern":"^([A-Z][a-z]+ ){1,2}(x|yz){2}$"})",
     {R"("Ada xx")", R"("Ada Bob yzx")"},
     {R"("xx")", R"("Ada x")", R"("Ada Bob Cy xx")", R"("Ada xxx")"}},
    {"integers within bounds",
     R"({"type":"integer","minimum":-3,"maximum":120})",
     {"-3", "0", "7", "120"},
     {"-4", "121", "007", "1.5"}},
    {"numbers",
     R"({"type":"number"})",
     {"0", "-1.25", "6.02e23", "1E-9"},
     {"01", ".5", "+1", "NaN", "1."}},
    {"strings hold any character",
     R"({"type":"string"})",
     {R"("")", "\"\xC3\xA9 \xE6\x97\xA5 \xF0\x9F\x98\x80\"", R"("\n\"\\ é")"},
     {"\"a\nb\"", R"("\x")", "\"\xFF\"", "'a'"}},
    {"lengths count characters",
     R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", "\"\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80\""},
     {R"("a")", R"("abcd")", "\"a\x1b\"", "\"a\nb\""}},
    {"a largest length alone",
     R"({"type":"string","maxLength":3})",
     {R"("")", R"("abc")"},
     {R"("abcd")", "\"a\x1b\""}},
    {"alternatives",
     R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"null"}}]})",
     {"4", "[null, null]"},
     {R"("4")", "[4]"}},
    {"several types", R"({"type":["string","null"]})", {"null", R"("a")"}, {"1"}},
    {"dates, times and identifiers",
     R"({"type":"array","prefixItems":[{"type":"string","format":"date"},
         {"type":"string","format":"uuid"}],"items":false})",
     {R"(["2024-02-29", "123e4567-e89b-12d3-a456-426614174000"])"},
     {R"(["2024-13-29", "123e4567-e89b-12d3-a456-426614174000"])"}},
    {"an object of which nothing is said may hold anything",
     R"({"type":"object"})",
     {"{}", R"({"a": [1, {"b": "c"}]})"},
     {"[]", R"({"a" : 1})"}},
    {"an array of which nothing is said may hold anything",
     R"({"type":"array"})",
     {"[]", R"([1, "a", {}])"},
     {"{}"}},
    {"no schema at all", "{}", {"1", R"({"a": []})", "null"}, {"a"}},
    {"additional properties of a type",
     R"({"type":"object","additionalProperties":{"type":"integer"}})",
     {"{}", R"({"x": 1, "y": 2})"},
     {R"({"x": "1"})"}},
};

TEST_F(GrammarTest, SchemasAllowWhatTheySayAndNothingElse) {
  for (const SchemaCase& c : kSchemas) {
    SCOPED_TRACE(c.name);
    const CompiledGrammar g = schema(c.schema);
    for (const char* text : c.whole) EXPECT_EQ(judge(g, text), Verdict::whole) << text;
    for (const char* text : c.not_whole) EXPECT_NE(judge(g, text), Verdict::whole) << text;
  }
}

TEST_F(GrammarTest, PatternsCannotLeaveTheirString) {
  for (const char* pattern : {"^.{1,4}$", ".*", "[^a]+", "\\\\S+", "[!-~]{2}"}) {
    const CompiledGrammar g =
        schema(std::string(R"({"type":"string","pattern":")") + pattern + "\"}");
    for (const char* text : {"\"\"\"", "\"b\"b\"", "\"b\nb\"", "\"\\\"", "\"b\x01\""})
      EXPECT_NE(judge(g, text), Verdict::whole) << pattern << " let through " << text;
  }
}

TEST_F(GrammarTest, RegexesMatchTheWholeAnswer) {
  const CompiledGrammar g = compiled(Grammar::from_regex(R"((yes|no)[!?]{0,2} \d{2,3})"));
  for (const char* text : {"yes 12", "no!? 123"}) EXPECT_EQ(judge(g, text), Verdict::whole) << text;
  for (const char* text : {"yes 1", "maybe 12", "yes!!! 12", "no 1234"})
    EXPECT_NE(judge(g, text), Verdict::whole) << text;
}

TEST_F(GrammarTest, RulesMayRecurse) {
  const CompiledGrammar g =
      compiled(Grammar::from_ebnf("root ::= expr\nexpr ::= term ((\"+\" | \"*\") term)*\nterm ::= "
                                  "[0-9]+ | \"(\" expr \")\"\n"));
  for (const char* text : {"1", "1+2*(3+4)", "((7))"})
    EXPECT_EQ(judge(g, text), Verdict::whole) << text;
  for (const char* text : {"", "1+", "(1", "1)"}) EXPECT_NE(judge(g, text), Verdict::whole) << text;
}

TEST_F(GrammarTest, ChoicesAreTakenLiterally) {
  const std::vector<std::string> texts = {"a.b", "say \"hi\"\n", "\xC3\xA9t\xC3\xA9", "[x]\\"};
  const CompiledGrammar g = compiled(Grammar::choice(texts));
  for (const std::string& text : texts) EXPECT_EQ(judge(g, text), Verdict::whole) << text;
  for (const char* text : {"axb", "say hi", "x", "a"})
    EXPECT_NE(judge(g, text), Verdict::whole) << text;
}

const ToolShape kWeather = {"get_weather",
                            json(R"({"type":"object","properties":{"city":{"type":"string"}},
                            "required":["city"]})")};
const ToolShape kAdd = {"add",
                        json(R"({"$defs":{"n":{"type":"integer"}},"type":"object","properties":{
                    "a":{"$ref":"#/$defs/n"}},"required":["a"]})")};
constexpr const char* kWeatherCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
constexpr const char* kAddCall =
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 5}}\n</tool_call>";

TEST_F(GrammarTest, RequiredToolCallsAreAllThereIs) {
  const ToolShape tools[] = {kWeather, kAdd};
  const CompiledGrammar many = compiled(Grammar::tool_calls(tools, {}));
  const CompiledGrammar one = compiled(Grammar::tool_calls(tools, {.parallel = false}));
  const std::string two = std::string(kWeatherCall) + "\n" + kAddCall;
  EXPECT_EQ(judge(many, kWeatherCall), Verdict::whole);
  EXPECT_EQ(judge(many, two), Verdict::whole);
  EXPECT_EQ(judge(one, kAddCall), Verdict::whole);
  EXPECT_EQ(judge(one, two), Verdict::refused);
  EXPECT_EQ(judge(many, "Hello"), Verdict::refused);
  EXPECT_EQ(judge(many, ""), Verdict::unfinished);
  EXPECT_EQ(judge(many, "<tool_call>\n{\"name\": \"sub\""), Verdict::refused);
  std::string all = kAddCall;
  for (int i = 1; i < 16; ++i) all += std::string("\n") + kAddCall;
  EXPECT_EQ(judge(many, all), Verdict::whole);
  EXPECT_EQ(judge(many, all + "\n"), Verdict::refused) << "a small model must come to an end";
}

TEST_F(GrammarTest, BareToolCallsHaveNoTags) {
  const ToolShape tools[] = {kWeather};
  const CompiledGrammar g = compiled(Grammar::tool_calls(tools, {.open = "{\"name\": \"",
                                                                 .middle = "\", \"parameters\": ",
                                                                 .close = "}",
                                                                 .parallel = false}));
  EXPECT_EQ(judge(g, R"({"name": "get_weather", "parameters": {"city": ""}})"), Verdict::whole);
  EXPECT_EQ(judge(g, R"({"name": "get_weather", "arguments")"), Verdict::refused);
}

TEST_F(GrammarTest, ToolCallsMayStandInAList) {
  const ToolShape tools[] = {kWeather, kAdd};
  const CompiledGrammar g = compiled(Grammar::tool_calls(tools, {.begin = "[",
                                                                 .open = "{\"name\": \"",
                                                                 .middle = "\", \"arguments\": ",
                                                                 .close = "}",
                                                                 .between = ", ",
                                                                 .end = "]"}));
  const std::string weather = R"({"name": "get_weather", "arguments": {"city": "x"}})",
                    add = R"({"name": "add", "arguments": {"a": 5}})";
  EXPECT_EQ(judge(g, "[" + add + "]"), Verdict::whole);
  EXPECT_EQ(judge(g, "[" + weather + ", " + add + "]"), Verdict::whole);
  EXPECT_EQ(judge(g, "[" + add), Verdict::unfinished);
  EXPECT_EQ(judge(g, add), Verdict::refused);
}

TEST_F(GrammarTest, ToolCallsWithinTextAreWellFormed) {
  const ToolShape tools[] = {kWeather, kAdd};
  const CompiledGrammar g = compiled(Grammar::tool_calls(tools, {.required = false}));
  for (const std::string& text :
       {std::string(""), std::string("Hello <b> <tool"), std::string("Let me see. ") + kAddCall,
        std::string(kAddCall) + "\n" + kWeatherCall + " done"})
    EXPECT_EQ(judge(g, text), Verdict::whole) << text;
  EXPECT_EQ(judge(g, "Well, <tool_call>\n{\"name\": \"sub\""), Verdict::refused);
  EXPECT_EQ(judge(g, "Well, <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": "),
            Verdict::unfinished);
}

TEST_F(GrammarTest, MaskSaysWhatMayBeAccepted) {
  std::mt19937 random(7);
  const ToolShape tools[] = {kWeather, kAdd};
  std::vector<CompiledGrammar> grammars = {
      compiled(Grammar::json_object()), compiled(Grammar::tool_calls(tools, {.required = false})),
      compiled(Grammar::from_regex("(low|lower|[a-e]{2,5}) *\\n?"))};
  for (const SchemaCase& c : kSchemas) grammars.push_back(schema(c.schema));
  std::size_t steps = 0;
  for (const CompiledGrammar& g : grammars) {
    GrammarMatcher m = g.start();
    for (int i = 0; i < 40 && !m.over(); ++i) {
      const std::vector<TokenId> may = allowed(m, vocabulary_);
      for (TokenId t = 0; t < vocabulary_; ++t)
        ASSERT_EQ(std::ranges::binary_search(may, t), m.fork().accept(t))
            << "token " << t << " after " << i;
      EXPECT_EQ(std::ranges::binary_search(may, tokenizer_.eos()), m.may_end());
      if (may.empty()) break;
      ASSERT_TRUE(m.accept(may[random() % may.size()]));
      ++steps;
    }
  }
  EXPECT_GT(steps, 300u);
}

TEST_F(GrammarTest, EndTokenEndsAndNothingFollows) {
  GrammarMatcher m = schema(R"({"const":1})").start();
  EXPECT_FALSE(m.accept(tokenizer_.eos()));
  EXPECT_FALSE(m.accept(tokenizer_.bos())) << "control tokens are not text";
  EXPECT_TRUE(feed(m, "1"));
  EXPECT_FALSE(m.over());
  EXPECT_EQ(allowed(m, vocabulary_), std::vector<TokenId>{tokenizer_.eos()});
  EXPECT_TRUE(m.accept(tokenizer_.eos()));
  EXPECT_TRUE(m.over());
  EXPECT_FALSE(m.accept('1'));
  EXPECT_TRUE(allowed(m, vocabulary_).empty());
}

TEST_F(GrammarTest, ForksGoTheirOwnWays) {
  GrammarMatcher a = schema(R"({"type":"array","items":{"type":"integer"}})").start();
  ASSERT_TRUE(feed(a, "[1"));
  GrammarMatcher b = a.fork();
  ASSERT_TRUE(feed(a, "]"));
  EXPECT_TRUE(a.may_end());
  EXPECT_FALSE(b.may_end());
  EXPECT_TRUE(feed(b, ", 2]"));
}

TEST_F(GrammarTest, StrictSchemasNameWhatCannotBeEnforced) {
  const auto strict = [&](const char* text) {
    return refusal(Grammar::from_json_schema(json(text), {.strict = true}));
  };
  EXPECT_THAT(strict(R"({"type":"object","properties":{"a":{"not":{}}}})"),
              testing::HasSubstr("properties.a: 'not'"));
  EXPECT_THAT(strict(R"({"type":"array","items":{},"uniqueItems":true})"),
              testing::HasSubstr("'uniqueItems'"));
  EXPECT_THAT(strict(R"({"type":"number","multipleOf":0.5})"), testing::HasSubstr("multipleOf"));
  EXPECT_EQ(refusal(Grammar::from_json_schema(json(R"({"not":{"type":"null"}})"))), "");
  EXPECT_EQ(strict(R"({"type":"array","items":{},"uniqueItems":false})"), "");
}

TEST_F(GrammarTest, WhatIsWrongIsSaid) {
  const auto schema_refusal = [&](const char* text) {
    return refusal(Grammar::from_json_schema(json(text)));
  };
  for (const std::string& message :
       {schema_refusal(R"({"type":"objekt"})"), schema_refusal(R"({"$ref":"#/$defs/none"})"),
        schema_refusal(R"({"properties":[]})"), schema_refusal(R"("a")"),
        schema_refusal(R"({"enum":[]})"), schema_refusal(R"({"type":"string","minLength":"1"})"),
        schema_refusal(R"({"type":"integer","minimum":5,"maximum":1})"),
        schema_refusal(R"({"type":"array","maxItems":100000000})"),
        schema_refusal(R"({"type":"object","required":[1],"properties":{}})"),
        refusal(Grammar::from_regex("(a")), refusal(Grammar::from_regex("a{2,1}")),
        refusal(Grammar::from_regex("(?=a)b")), refusal(Grammar::from_regex("")),
        refusal(Grammar::from_ebnf("nothing")), refusal(Grammar::from_ebnf("other ::= \"a\"")),
        refusal(Grammar::from_ebnf("root ::= missing")), refusal(Grammar::choice({}))}) {
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find(".cc"), message.npos) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  }
}

TEST_F(GrammarTest, SizesAreBounded) {
  std::string deep = "{}";
  for (int i = 0; i < 60; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_FALSE(Grammar::from_json_schema(Json::parse(deep)).ok());
  Json wide = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 5000; ++i) wide["properties"][std::to_string(i)] = Json::object();
  EXPECT_FALSE(Grammar::from_json_schema(wide).ok());
  Json values = {{"enum", Json::array()}};
  for (int i = 0; i < 5000; ++i) values["enum"].push_back(i);
  EXPECT_FALSE(Grammar::from_json_schema(values).ok());
  EXPECT_FALSE(Grammar::from_regex(std::string(9000, 'a')).ok());
  EXPECT_FALSE(Grammar::from_regex(std::string(300, '(') + std::string(300, ')')).ok());
}

TEST_F(GrammarTest, CompiledGrammarsAreKeptWithinBounds) {
  GrammarCompiler small(tokenizer_, vocabulary_, {.kept = 2});
  const Grammar a = Grammar::from_regex("a").value(), b = Grammar::from_regex("b").value(),
                c = Grammar::from_regex("c").value();
  CompiledGrammar out;
  for (const Grammar* g : {&a, &b, &a, &c}) ASSERT_TRUE(small.compile(*g).ok());
  EXPECT_EQ(small.kept(), 2u);
  EXPECT_TRUE(small.find(a, out));
  EXPECT_FALSE(small.find(b, out)) << "the least recently used one leaves";
  EXPECT_TRUE(small.find(c, out));
  EXPECT_GT(small.kept_bytes(), 0u);
  EXPECT_NE(a.digest(), b.digest());
}

// ---- a real vocabulary

TEST_F(GrammarTest, RandomAnswersOfARealVocabularyAreValid) {
  const std::string path = test_model_path("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf");
  if (path.empty()) GTEST_SKIP() << "no model file";
  const Tokenizer tokenizer = std::move(Tokenizer::create(read_gguf_vocab(path).value()).value());
  const auto vocabulary = static_cast<std::uint32_t>(tokenizer.size());
  GrammarCompiler compiler(tokenizer, vocabulary);
  const Grammar grammar =
      Grammar::from_json_schema(
          json(R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
            "kind":{"enum":["\u00e9t\u00e9","hiver"]},"n":{"type":"integer","minimum":0,"maximum":999},
            "tags":{"type":"array","items":{"type":"string","pattern":"^[a-z]{1,4}$"},"maxItems":3}},
            "required":["name","kind","n","tags"]})"),
          {.strict = true})
          .value();
  const CompiledGrammar compiled = compiler.compile(grammar).value();
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    GrammarMatcher m = compiled.start();
    std::string text;
    for (int i = 0; i < 400 && !m.over(); ++i) {
      const std::vector<TokenId> may = allowed(m, vocabulary);
      ASSERT_FALSE(may.empty());
      const TokenId t = may[random() % may.size()];
      ASSERT_TRUE(m.accept(t));
      if (!tokenizer.is_end_of_generation(t)) text += tokenizer.piece(t);
    }
    ASSERT_TRUE(m.over()) << text;
    const auto parsed = parse_json(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_TRUE(parsed.value()["n"].is_number_integer()) << text;
    EXPECT_LE(parsed.value()["n"].get<int>(), 999) << text;
    EXPECT_LE(parsed.value()["tags"].size(), 3u) << text;
  }
}

}  // namespace
}  // namespace quire
