// Outputs as families of models write them, read whole and cut at every byte. The outputs were written for this
// test after the documents that each entry's file names.
#include "server/answer_format/answer_format.h"

#include <gtest/gtest.h>

#include "server/answer_format/answer_reader.h"
#include "text/tiny_vocab.h"

namespace quire {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

struct Parts {
  std::string reasoning, content;
  Calls calls = {};
  bool operator==(const Parts&) const = default;
};

void PrintTo(const Parts& p, std::ostream* out) {
  *out << "reasoning '" << p.reasoning << "', content '" << p.content << "'";
  for (const auto& [name, arguments] : p.calls) *out << ", " << name << " " << arguments;
}

const Json kTools = parse_json(R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"now"}}])")
                        .value();

struct Recorded {
  const char* what;
  AnswerFormat format;
  const Json& tools = kTools;
  std::string_view prompt_end = {};

  Parts read(std::string_view text, std::size_t cut, std::size_t step) const {
    AnswerReader reader(format, {tools, prompt_end});
    Parts out;
    const auto take = [&](const std::vector<ToolPiece>& pieces) {
      for (const ToolPiece& p : pieces) {
        switch (p.kind) {
          case ToolPiece::Kind::content:
            out.content += p.text;
            break;
          case ToolPiece::Kind::reasoning:
            out.reasoning += p.text;
            break;
          case ToolPiece::Kind::call:
            EXPECT_EQ(p.index, out.calls.size());
            out.calls.push_back({p.text, ""});
            break;
          case ToolPiece::Kind::arguments:
            out.calls.at(p.index).second += p.text;
        }
      }
    };
    take(reader.add(text.substr(0, cut)));
    for (std::size_t i = cut; i < text.size(); i += step) take(reader.add(text.substr(i, step)));
    take(reader.finish());
    EXPECT_EQ(reader.calls(), out.calls.size());
    return out;
  }

  // However the text is cut, the same comes out.
  Parts operator()(std::string_view text) const {
    const Parts whole = read(text, text.size(), 1);
    for (std::size_t cut = 0; cut < text.size(); ++cut)
      EXPECT_EQ(read(text, cut, text.size()), whole) << what << " cut at " << cut << ": " << text;
    for (const std::size_t step : {1, 2, 3, 7})
      EXPECT_EQ(read(text, 0, step), whole) << what << " in pieces of " << step << ": " << text;
    return whole;
  }
};

Recorded by_parser(const char* calls, const char* reasoning = "none",
                   std::string_view prompt_end = {}) {
  EXPECT_TRUE(check_parser_names({calls, reasoning}).ok());
  return {calls, answer_format("", {calls, reasoning}), kTools, prompt_end};
}

const Calls kParis = {{"get_weather", R"({"city": "Paris"})"}};
const Calls kTwo = {{"get_weather", R"({"city": "Paris", "days": 2})"}, {"now", "{}"}};

TEST(AnswerFormat, Hermes) {
  const Recorded read = by_parser("hermes", "think");
  EXPECT_EQ(read("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", "
                 "\"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": "
                 "{}}\n</tool_call>"),
            (Parts{"", "", kTwo}));
  EXPECT_EQ(read("<think>\nThe user asks for weather.\n</think>\n\nLet me see.\n<tool_call>\n"
                 "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"),
            (Parts{"The user asks for weather.", "Let me see.\n", kParis}));
  EXPECT_EQ(
      read("<tool_call>{\"arguments\": {\"x\": \"}\\\"\"}, \"name\": \"f\"}</tool_call> done {x}"),
      (Parts{"", "done {x}", {{"f", "{\"x\": \"}\\\"\"}"}}}));
  EXPECT_EQ(read(" {\"name\": \"now\"} "), (Parts{"", "", {{"now", "{}"}}}));
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"),
            (Parts{"", "", {{"f", "{\"a\": 1}"}}}))
      << "arguments packed as a string";
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>").calls[0].second,
            "null");
}

TEST(AnswerFormat, WhatIsNoCallStaysText) {
  for (const char* calls : {"hermes", "mistral", "llama3", "deepseek", "granite", "phi",
                            "command_r", "gemma", "pythonic", "qwen3_coder"})
    for (const char* text :
         {"  Hello < you <tool> {} [", "a <tool_cal", "", "<tool_call>hello</tool_call>",
          "{\"answer\": 42}", "{\"answer\": 4", "[TOOL_CALLS]", "[TOOL_CALLS] no [", "[1, 2]",
          "<|tool_call|>none", "<|python_tag|>print(1)", "<|START_ACTION|>\nx", "[f(1)]",
          "<start_function_call>call:<end_function_call>", "<|tool_call>call:f{x<tool_call|>",
          "<tool_call>\n<function=f>\n<parameter=x>", "<｜tool▁calls▁begin｜>x<｜tool▁sep｜>y",
          " \n "})
      EXPECT_EQ(by_parser(calls)(text), (Parts{"", text})) << calls;
}

TEST(AnswerFormat, Mistral) {
  const Recorded read = by_parser("mistral", "mistral");
  EXPECT_EQ(
      read(R"([TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},)"
           R"( {"name": "now", "arguments": {}, "id": "9Ae3bDc2F"}])"),
      (Parts{"", "", kTwo}));
  EXPECT_EQ(
      read(R"([TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]now[ARGS]{})"),
      (Parts{"", "", kTwo}));
  EXPECT_EQ(read(R"([TOOL_CALLS]get_weather{"city": "Paris"})"), (Parts{"", "", kParis}));
  EXPECT_EQ(read(R"(Well.[TOOL_CALLS]get_weather[CALL_ID]9Ae3bDc2F[ARGS]{"city": "Paris"})"),
            (Parts{"", "Well.", kParis}));
  EXPECT_EQ(read("[THINK]Rain?[/THINK]It rains."), (Parts{"Rain?", "It rains."}));
}

TEST(AnswerFormat, Llama3) {
  const Recorded read = by_parser("llama3_json");
  EXPECT_EQ(read(R"({"name": "get_weather", "parameters": {"city": "Paris"}})"),
            (Parts{"", "", kParis}));
  EXPECT_EQ(
      read(
          R"(<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}})"),
      (Parts{"", "", kParis}));
  EXPECT_EQ(
      read(
          R"({"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}; {"name": "now", "parameters": {}})"),
      (Parts{"", "", kTwo}));
  EXPECT_EQ(read(R"(<|python_tag|>brave_search.call(query="weather in Paris"))"),
            (Parts{"", "", {{"brave_search", R"({"query":"weather in Paris"})"}}}));
}

TEST(AnswerFormat, Pythonic) {
  const Recorded read = by_parser("pythonic");
  EXPECT_EQ(read(R"([get_weather(city="Paris", days=2), now()])"),
            (Parts{"", "", {{"get_weather", R"({"city":"Paris","days":2})"}, {"now", "{}"}}}));
  EXPECT_EQ(
      read("Sure.\n```tool_code\nf(a=[1, -2.5], b={'k': True, \"l\": None}, c='it\\'s')\n```"),
      (Parts{"", "Sure.\n", {{"f", R"({"a":[1,-2.5],"b":{"k":true,"l":null},"c":"it's"})"}}}));
}

TEST(AnswerFormat, DeepSeek) {
  const Recorded read = by_parser("deepseek_v3", "deepseek_r1", "<｜Assistant｜><think>\n");
  EXPECT_EQ(
      read("They want weather.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
           "<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\", \"days\": "
           "2}\n```<｜tool▁call▁end｜>\n"
           "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
           "<｜tool▁calls▁end｜>"),
      (Parts{"They want weather.", "", kTwo}));
  EXPECT_EQ(
      by_parser("deepseek_v31")(
          "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": "
          "\"Paris\", "
          "\"days\": "
          "2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
          "<｜tool▁calls▁end｜>"),
      (Parts{"", "I look.", kTwo}));
}

TEST(AnswerFormat, GraniteAndPhi) {
  EXPECT_EQ(
      by_parser("granite", "granite")(
          "Here is my thought process: weather.\nHere is my response:\n<|tool_call|>[{\"name\": "
          "\"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]"),
      (Parts{" weather.", "", kParis}));
  EXPECT_EQ(
      by_parser("phi4_mini_json")(
          R"(<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, )"
          R"({"name": "now", "arguments": {}}]<|/tool_call|>)"),
      (Parts{"", "", kTwo}));
  EXPECT_EQ(
      by_parser("phi")(R"(functools[{"name": "get_weather", "arguments": {"city": "Paris"}}])"),
      (Parts{"", "", kParis}));
}

TEST(AnswerFormat, CommandR) {
  EXPECT_EQ(
      by_parser("command_r", "command_r")(
          "<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": "
          "\"0\", "
          "\"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 2}},\n  "
          "  "
          "{\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>"),
      (Parts{"I will look.", "", kTwo}));
  EXPECT_EQ(by_parser("command_r")(
                "Action: ```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        "
                "\"parameters\": {\"city\": \"Paris\"}\n    }\n]\n```"),
            (Parts{"", "", kParis}));
}

TEST(AnswerFormat, Gemma) {
  const Recorded read = by_parser("gemma4", "gemma4");
  EXPECT_EQ(
      read("<|channel>thought\nRain?<channel|><|tool_call>call:get_weather{city:<|\"|>Paris, "
           "\"F\"<|\"|>,"
           "days:2}<tool_call|><|tool_call>call:now{}<tool_call|>"),
      (Parts{
          "Rain?", "", {{"get_weather", R"({"city":"Paris, \"F\"","days":2})"}, {"now", "{}"}}}));
  EXPECT_EQ(
      read("<start_function_call>call:f{a:<escape>x}<escape>,b:[<escape>y<escape>,1.5],c:{d:true}}"
           "<end_function_call>"),
      (Parts{"", "", {{"f", R"({"a":"x}","b":["y",1.5],"c":{"d":true}})"}}}));
}

TEST(AnswerFormat, QwenCoder) {
  EXPECT_EQ(
      by_parser("qwen3_coder")(
          "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n75001\n</parameter>\n"
          "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"),
      (Parts{"", "I look.\n", {{"get_weather", R"({"city":"75001","days":2})"}}}))
      << "the tool says which of them is a text";
}

TEST(AnswerFormat, Harmony) {
  const Recorded read = by_parser("openai", "openai_gptoss", "<|start|>assistant");
  EXPECT_EQ(
      read("<|channel|>analysis<|message|>They want "
           "weather.<|end|><|start|>assistant<|channel|>commentary "
           "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>"),
      (Parts{"They want weather.", "", kParis}));
  EXPECT_EQ(read("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|"
                 "message|>It < rains."),
            (Parts{"Hm.", "It < rains."}));
  EXPECT_EQ(read("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now"
                 "<|channel|>commentary<|message|>"),
            (Parts{"", "I look.", {{"now", "{}"}}}));
  EXPECT_EQ(read("tomorrow"), (Parts{"", "tomorrow"}));
  const Json none;
  const Recorded without{"harmony without tools", answer_format("", {"none", "openai"}), none};
  EXPECT_EQ(without("<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|"
                    "message|>B."
                    "<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}"),
            (Parts{"A.\nB.", "{}"}));
}

// Texts that templates of these families hold, and no others.
TEST(AnswerFormat, IsRevealedByTheTemplate) {
  const struct {
    const char *text, *calls, *reasoning;
  } cases[] = {
      {"{{ messages }}", "hermes", "none"},
      {"{% if tools %}<tool_call>{% endif %}", "hermes", "none"},
      {"{% if tools %}<tool_call>{% endif %}{{ '</think>' }}", "hermes", "think"},
      {"{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral", "none"},
      {"{% if tools %}{% endif %}[TOOL_CALLS][THINK]", "mistral", "mistral"},
      {"{% if tools %}{% endif %}<｜tool▁calls▁begin｜></think>", "deepseek", "think"},
      {"{% if tools %}{% endif %}<|python_tag|>", "llama3", "none"},
      {"{% if tools %}{% endif %}\"parameters\": ", "llama3", "none"},
      {"{% if tools %}<|start_of_role|>{% endif %}<|tool_call|>", "granite", "none"},
      {"<|tool|>{{ message['tools'] }}<|/tool|>", "phi", "none"},
      {"{% if tools %}{% endif %}<|START_THINKING|><|START_ACTION|>", "command_r", "command_r"},
      {"{% if tools %}{% endif %}<start_function_call>call:", "gemma", "none"},
      {"{% if tools %}{% endif %}<|channel>thought<|tool_call>call:", "gemma", "gemma"},
      {"{% if tools %}{% endif %}<tool_call>\n<function=", "qwen3_coder", "none"},
      {"{% if tools %}{% endif %}<|channel|>analysis<|message|>", "openai", "openai"},
      {"{% if tools %}{{ tools }}{% endif %}", "json", "none"},
  };
  for (const auto& c : cases) {
    const AnswerFormat f = answer_format(c.text);
    EXPECT_EQ(f.calls->name, c.calls) << c.text;
    EXPECT_EQ(f.reasoning ? f.reasoning->name : "none", c.reasoning) << c.text;
  }
  const AnswerFormat named = answer_format("[TOOL_CALLS]", {"granite", "none"});
  EXPECT_EQ(named.calls->name, "granite");
  EXPECT_EQ(answer_format("[TOOL_CALLS]", {"none", ""}).calls, nullptr);
  EXPECT_FALSE(check_parser_names({"nothing", ""}).ok());
  EXPECT_FALSE(check_parser_names({"", "nothing"}).ok());
}

TEST(AnswerFormat, MarksThatAreControlTokensStayVisible) {
  VocabSpec spec = tiny_byte_level();
  for (const char* mark : {"[TOOL_CALLS]", "[ARGS]", "[INST]"}) {
    spec.tokens.push_back(mark);
    spec.types.push_back(TokenType::control);
  }
  const Tokenizer t = std::move(Tokenizer::create(std::move(spec)).value());
  EXPECT_EQ(visible_tokens(answer_format("[TOOL_CALLS]"), t),
            (std::vector<TokenId>{t.find("[TOOL_CALLS]"), t.find("[ARGS]")}));
  EXPECT_TRUE(visible_tokens({}, t).empty());
}

}  // namespace
}  // namespace quire
