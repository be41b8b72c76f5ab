#include "server/dialect/gemini/gemini_parse.h"

#include <gtest/gtest.h>

#include "server/dialect/gemini/gemini_schema.h"

namespace quire::gemini {
namespace {

Json user(const char* text) {
  return {{"role", "user"}, {"parts", Json::array({{{"text", text}}})}};
}
Json model(const char* text) {
  return {{"role", "model"}, {"parts", Json::array({{{"text", text}}})}};
}

const ParseContext kContext{.vocabulary = 1000, .model = "m"};

GenerationRequest parsed(Json body) {
  if (!body.contains("contents")) body["contents"] = Json::array({user("hi")});
  GenerationRequest asked;
  const auto error = parse_generate(body, kContext, asked);
  EXPECT_FALSE(error) << error->message;
  return asked;
}

std::string refused(Json body) {
  if (!body.contains("contents")) body["contents"] = Json::array({user("hi")});
  GenerationRequest asked;
  const auto error = parse_generate(body, kContext, asked);
  EXPECT_TRUE(error) << body;
  if (!error) return "";
  EXPECT_EQ(error->status, 400);
  return error->param;
}

TEST(GeminiParse, NeighboursOfOneRoleAreOneMessage) {
  const auto asked = parsed(
      {{"systemInstruction", {{"parts", Json::array({{{"text", "Be"}}, {{"text", "terse"}}})}}},
       {"contents", Json::array({user("a"), user("b"), model("c"), model("d"), user("e")})}});
  EXPECT_EQ(asked.messages, (Json::array({{{"role", "system"}, {"content", "Be\nterse"}},
                                          {{"role", "user"}, {"content", "a\nb"}},
                                          {{"role", "assistant"}, {"content", "cd"}},
                                          {{"role", "user"}, {"content", "e"}}})));
  EXPECT_TRUE(asked.chat);
}

TEST(GeminiParse, RoleAndListMayBeMissing) {
  const auto asked = parsed({{"contents", {{"parts", Json::array({{{"text", "x"}}})}}}});
  EXPECT_EQ(asked.messages, (Json::array({{{"role", "user"}, {"content", "x"}}})));
}

TEST(GeminiParse, ConfigIsTakenInBothSpellings) {
  for (const char* text :
       {R"({"generationConfig":{"temperature":0.5,"topP":0.5,"topK":4.0,"candidateCount":2,
            "maxOutputTokens":7,"stopSequences":["x"],"seed":3,"presencePenalty":1,
            "frequencyPenalty":-1,"responseLogprobs":true,"logprobs":2}})",
        R"({"generation_config":{"temperature":0.5,"top_p":0.5,"top_k":4,"candidate_count":2,
            "max_output_tokens":7,"stop_sequences":["x"],"seed":3,"presence_penalty":1,
            "frequency_penalty":-1,"response_logprobs":true,"logprobs":2}})"}) {
    const auto asked = parsed(Json::parse(text));
    EXPECT_EQ(asked.sampling.temperature, 0.5f);
    EXPECT_EQ(asked.sampling.top_p, 0.5f);
    EXPECT_EQ(asked.sampling.top_k, 4u);
    EXPECT_EQ(asked.sampling.presence_penalty, 1);
    EXPECT_EQ(asked.sampling.frequency_penalty, -1);
    EXPECT_EQ(asked.n, 2u);
    EXPECT_EQ(asked.tokens_max, 7u);
    EXPECT_EQ(asked.stop, std::vector<std::string>{"x"});
    EXPECT_TRUE(asked.seeded && asked.logprobs);
    EXPECT_EQ(asked.top_logprobs, 2u);
  }
}

TEST(GeminiParse, MistakesAreNamed) {
  const auto config = [](Json c) { return refused({{"generationConfig", std::move(c)}}); };
  EXPECT_EQ(config({{"temperature", 3}}), "generationConfig.temperature");
  EXPECT_EQ(config({{"topP", 0}}), "generationConfig.topP");
  EXPECT_EQ(config({{"candidateCount", 0}}), "generationConfig.candidateCount");
  EXPECT_EQ(config({{"logprobs", 2}}), "generationConfig.logprobs");
  EXPECT_EQ(config({{"responseMimeType", "image/png"}}), "generationConfig.responseMimeType");
  EXPECT_EQ(config({{"responseSchema", {{"type", "STRING"}}}}), "generationConfig.responseSchema");
  EXPECT_EQ(config({{"responseModalities", {"AUDIO"}}}), "generationConfig.responseModalities");
  EXPECT_EQ(refused({{"contents", Json::array()}}), "contents");
  EXPECT_EQ(refused({{"contents", "hi"}}), "contents");
  EXPECT_EQ(refused({{"contents", Json::array({{{"role", "king"}, {"parts", Json::array()}}})}}),
            "contents[0].role");
  EXPECT_EQ(refused({{"contents", Json::array({{{"role", "user"}}})}}), "contents[0].parts");
  EXPECT_EQ(
      refused({{"contents",
                Json::array({{{"parts", Json::array({{{"inlineData", {{"data", "x"}}}}})}}})}}),
      "contents[0].parts[0]");
  EXPECT_EQ(refused({{"tools", Json::array({{{"googleSearch", Json::object()}}})}}),
            "tools[0].googleSearch");
  EXPECT_EQ(refused({{"cachedContent", "cachedContents/x"}}), "cachedContent");
}

TEST(GeminiParse, FunctionsTheirCallsAndResults) {
  const auto asked = parsed(Json::parse(R"({
    "tools":[{"functionDeclarations":[
      {"name":"f","description":"d","parameters":{"type":"OBJECT","properties":{"a":{"type":"INTEGER"}}}},
      {"name":"g","parametersJsonSchema":{"type":"object"}}, {"name":"h"}]}],
    "toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["f"]}},
    "contents":[{"role":"user","parts":[{"text":"go"}]},
      {"role":"model","parts":[{"text":"thinking","thought":true},{"functionCall":{"name":"f","args":{"a":1}}}]},
      {"role":"user","parts":[{"functionResponse":{"id":"1","name":"f","response":{"result":2}}},{"text":"and?"}]}]})"));
  ASSERT_EQ(asked.tools.size(), 3u);
  EXPECT_EQ(asked.tools[0],
            Json::parse(R"({"type":"function","function":{"name":"f","description":"d",
    "parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}})"));
  EXPECT_EQ(asked.tools[2]["function"]["parameters"]["type"], "object");
  EXPECT_EQ(asked.tool_choice.kind, ToolChoice::Kind::required);
  EXPECT_EQ(asked.tool_choice.allowed, std::vector<std::string>{"f"});
  EXPECT_EQ(asked.messages, Json::parse(R"([{"role":"user","content":"go"},
    {"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"a":1}}}]},
    {"role":"tool","name":"f","content":"{\"result\":2}"},{"role":"user","content":"and?"}])"));
  EXPECT_EQ(refused({{"toolConfig", {{"functionCallingConfig", {{"mode", "ANY"}}}}}}),
            "toolConfig.functionCallingConfig.mode");
  EXPECT_EQ(refused({{"toolConfig",
                      {{"functionCallingConfig", {{"allowedFunctionNames", {"f", 1, 2}}}}}}}),
            "toolConfig.functionCallingConfig.allowedFunctionNames");
}

TEST(GeminiParse, ShapesOfAnswers) {
  auto asked = parsed({{"generationConfig", {{"responseMimeType", "application/json"}}}});
  EXPECT_EQ(asked.grammar.kind, AnswerGrammar::Kind::json_object);
  asked = parsed({{"generationConfig",
                   {{"responseMimeType", "application/json"},
                    {"responseJsonSchema", {{"type", "integer"}}}}}});
  EXPECT_EQ(asked.grammar.kind, AnswerGrammar::Kind::json_schema);
  EXPECT_EQ(asked.grammar.schema, (Json{{"type", "integer"}}));
  EXPECT_EQ(asked.grammar.param, "generationConfig.responseJsonSchema");
  asked = parsed({{"generationConfig",
                   {{"responseMimeType", "text/x.enum"},
                    {"responseSchema", {{"type", "STRING"}, {"enum", {"a", "b", "c"}}}}}}});
  EXPECT_EQ(asked.grammar.kind, AnswerGrammar::Kind::choice);
  EXPECT_EQ(asked.grammar.choices.size(), 3u);
  EXPECT_EQ(parsed({}).grammar.kind, AnswerGrammar::Kind::none);
}

TEST(GeminiSchema, BecomesAJsonSchema) {
  EXPECT_EQ(json_schema_of(Json::parse(R"({"type":"OBJECT","properties":{
      "b":{"type":"STRING","nullable":true},"a":{"type":"ARRAY","min_items":"1","items":{"type":"NUMBER","format":"double"}},
      "c":{"anyOf":[{"type":"BOOLEAN"},{"ref":"#/$defs/d"}]}},
      "propertyOrdering":["a","b"],"required":["a"],"defs":{"d":{"type":"NULL","example":"x"}}})")),
            Json::parse(R"({"type":"object","properties":{
      "a":{"type":"array","minItems":1,"items":{"type":"number"}},
      "b":{"anyOf":[{"type":"string"},{"type":"null"}]},
      "c":{"anyOf":[{"type":"boolean"},{"$ref":"#/$defs/d"}]}},
      "required":["a"],"$defs":{"d":{"type":"null"}}})"));
  const Json plain = Json::parse(
      R"({"type":["string","null"],"format":"date","additionalProperties":false,"minLength":2})");
  EXPECT_EQ(json_schema_of(plain), plain);
}

TEST(GeminiCache, ABodyWithoutItAsksTheSame) {
  const Json cached{{"contents", Json::array({user("doc")})},
                    {"systemInstruction", {{"parts", Json::array({{{"text", "s"}}})}}}};
  Json body{{"contents", Json::array({user("why?")})}, {"cachedContent", "cachedContents/x"}};
  ASSERT_FALSE(without_cache(body, cached));
  EXPECT_EQ(parsed(body).messages, (Json::array({{{"role", "system"}, {"content", "s"}},
                                                 {{"role", "user"}, {"content", "doc\nwhy?"}}})));
  for (const char* name : {"systemInstruction", "tools", "tool_config"}) {
    Json both{{"contents", Json::array({user("x")})}, {name, Json::object()}};
    EXPECT_TRUE(without_cache(both, cached)) << name;
  }
}

TEST(GeminiParse, CountedRequestsMayBeWrapped) {
  const Json inner{{"contents", Json::array({user("x")})}};
  EXPECT_EQ(counted_request(inner), inner);
  EXPECT_EQ(counted_request({{"generateContentRequest", inner}}), inner);
}

}  // namespace
}  // namespace quire::gemini
