#include "server/dialect/responses/responses_parse.h"

#include <gtest/gtest.h>

#include "server/dialect/responses/turn.h"

namespace quire::responses {
namespace {

class ResponsesParse : public ::testing::Test {
 protected:
  std::optional<ApiError> parse(const char* body) {
    asked_ = {};
    return parse_response(Json::parse(body), context_, asked_);
  }
  std::string refused(const char* body) {
    const auto error = parse(body);
    EXPECT_TRUE(error) << body;
    if (!error) return {};
    EXPECT_EQ(error->status, 400) << body;
    return error->param;
  }
  const Turn& turn() const { return dynamic_cast<const Turn&>(*asked_.notes); }
  void keep(const char* id, const char* json) { store_->put("", id, {.json = json}); }

  std::shared_ptr<ResponseStore> store_ = ResponseStore::open({}).value();
  ParseContext context_{.vocabulary = 1000,
                        .model = "m",
                        .kv = {.kv_format = "f16"},
                        .answer_id = "a1",
                        .state = store_};
  GenerationRequest asked_;
};

TEST_F(ResponsesParse, ATextIsAMessageAndInstructionsComeFirst) {
  ASSERT_FALSE(parse(R"({"input":"Hi","instructions":"Be terse.","max_output_tokens":7})"));
  EXPECT_EQ(asked_.messages, Json::parse(R"([{"role":"system","content":"Be terse."},
                                            {"role":"user","content":"Hi"}])"));
  EXPECT_EQ(asked_.tokens_max, 7u);
  EXPECT_EQ(asked_.model, "m");
  EXPECT_EQ(turn().items,
            R"([{"id":"msg_a1_0","type":"message","role":"user","status":"completed",)"
            R"("content":[{"type":"input_text","text":"Hi"}]}])");
  EXPECT_EQ(turn().echo["instructions"], "Be terse.");
  EXPECT_EQ(turn().store, store_);
}

TEST_F(ResponsesParse, CallsJoinTheMessageTheyFollow) {
  ASSERT_FALSE(parse(R"({"input":[
      {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Wait."}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},
      {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
      {"type":"function_call_output","call_id":"c1","output":"one"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]}]})"));
  ASSERT_EQ(asked_.messages.size(), 4u);
  EXPECT_EQ(asked_.messages[0]["content"], "a\nb");
  EXPECT_EQ(asked_.messages[1]["content"], "Wait.");
  ASSERT_EQ(asked_.messages[1]["tool_calls"].size(), 2u);
  EXPECT_EQ(asked_.messages[1]["tool_calls"][0]["function"]["arguments"],
            Json::parse(R"({"x":1})"));
  EXPECT_EQ(asked_.messages[1]["tool_calls"][0]["id"], "0");  // random ids are not for the prompt
  EXPECT_EQ(asked_.messages[2]["role"], "tool");
  EXPECT_EQ(asked_.messages[2]["content"], "one");
  EXPECT_EQ(asked_.messages[2]["name"], "f");
  EXPECT_EQ(asked_.messages[3]["content"], "two");
}

TEST_F(ResponsesParse, AChainIsTheItemsBeforeTheOutputAndTheInput) {
  keep("resp_p", R"({"items":[{"id":"msg_p_0","type":"message","role":"user","content":"one"}],
      "response":{"instructions":"old","output":[
        {"id":"msg_p_1","type":"message","role":"assistant","content":[{"type":"output_text","text":"two"}]}]}})");
  ASSERT_FALSE(parse(R"({"input":"three","previous_response_id":"resp_p"})"));
  EXPECT_EQ(asked_.messages, Json::parse(R"([{"role":"user","content":"one"},
      {"role":"assistant","content":"two"},{"role":"user","content":"three"}])"));
  EXPECT_EQ(turn().item_count, 3u);
  EXPECT_NE(turn().items.find("msg_a1_2"), std::string::npos);
  EXPECT_NE(turn().items.find("msg_p_1"), std::string::npos);

  const auto error = parse(R"({"input":"x","previous_response_id":"resp_q"})");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->code, "previous_response_not_found");
  EXPECT_EQ(error->param, "previous_response_id");
  context_.kv.tenant = "other";
  EXPECT_EQ(refused(R"({"input":"x","previous_response_id":"resp_p"})"), "previous_response_id");
  context_.kv.tenant = "";
  keep("resp_bad", R"({"items":[{"type":"message","role":"tool"}],"response":{"output":[]}})");
  EXPECT_EQ(refused(R"({"input":"x","previous_response_id":"resp_bad"})"),
            "previous_response_id.role");
}

TEST_F(ResponsesParse, ReferencesAreFoundByTheResponseInTheirId) {
  keep("resp_p.1_x", R"({"items":[],"response":{"output":[
      {"id":"msg_p.1_x_0","type":"message","role":"assistant","content":"said"}]}})");
  ASSERT_FALSE(parse(R"({"input":[{"type":"item_reference","id":"msg_p.1_x_0"},
                                  {"role":"user","content":"go on"}]})"));
  EXPECT_EQ(asked_.messages[0]["content"], "said");
  EXPECT_EQ(refused(R"({"input":[{"type":"item_reference","id":"msg_p.1_x_9"}]})"), "input[0].id");
  EXPECT_EQ(refused(R"({"input":[{"id":"_"}]})"), "input[0].id");
}

TEST_F(ResponsesParse, TextThatIsReferredToIsBounded) {
  const Json large{{"items",
                    {{{"id", "msg_b_0"},
                      {"type", "message"},
                      {"role", "user"},
                      {"content", std::string(1 << 20, 'x')}}}},
                   {"response", {{"output", Json::array()}}}};
  keep("resp_b", dump(large).c_str());
  Json body{{"input", Json::array()}};
  for (int i = 0; i < 100; ++i)
    body["input"].push_back({{"type", "item_reference"}, {"id", "msg_b_0"}});
  const auto error = parse_response(body, context_, asked_);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "context_length_exceeded");
  EXPECT_EQ(error->param, "input");
}

TEST_F(ResponsesParse, ToolsAreThoseOfChat) {
  ASSERT_FALSE(parse(R"({"input":"x","tool_choice":{"type":"function","name":"f"},
      "tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":null}]})"));
  EXPECT_EQ(asked_.tools, Json::parse(R"([{"type":"function","function":{"name":"f",
      "description":"d","parameters":{"type":"object"}}}])"));
  EXPECT_EQ(asked_.tool_choice.kind, ToolChoice::Kind::required);
  EXPECT_EQ(asked_.tool_choice.allowed, std::vector<std::string>{"f"});
  EXPECT_EQ(refused(R"({"input":"x","tools":[{"type":"web_search"}]})"), "tools[0].type");
  EXPECT_EQ(refused(R"({"input":"x","tools":[{"type":"function"}]})"), "tools[0].name");
  EXPECT_EQ(refused(R"({"input":"x","tool_choice":"required"})"), "tool_choice");
}

TEST_F(ResponsesParse, TheShapeOfTheTextIsAGrammar) {
  ASSERT_FALSE(parse(R"({"input":"x","text":{"format":{"type":"json_schema","name":"n",
      "schema":{"type":"object"},"strict":true}}})"));
  EXPECT_EQ(asked_.grammar.kind, AnswerGrammar::Kind::json_schema);
  EXPECT_TRUE(asked_.grammar.strict);
  EXPECT_EQ(asked_.grammar.param, "text.format");
  EXPECT_EQ(refused(R"({"input":"x","text":{"format":{"type":"json_schema"}}})"),
            "text.format.schema");
  EXPECT_EQ(refused(R"({"input":"x","text":{"format":{"type":"xml"}}})"), "text.format.type");
}

TEST_F(ResponsesParse, LogprobsAreIncludedByName) {
  ASSERT_FALSE(
      parse(R"({"input":"x","include":["message.output_text.logprobs"],"top_logprobs":3})"));
  EXPECT_TRUE(asked_.logprobs);
  EXPECT_EQ(asked_.top_logprobs, 3u);
  ASSERT_FALSE(parse(R"({"input":"x","include":["reasoning.encrypted_content"]})"));
  EXPECT_FALSE(asked_.logprobs);
  EXPECT_EQ(refused(R"({"input":"x","include":["everything"]})"), "include");
}

TEST_F(ResponsesParse, CacheOptions) {
  ASSERT_FALSE(parse(R"({"input":"x","prompt_cache_options":{"prewarm":true,"ttl":"12h",
      "comparison_response_id":"resp_q"},"prompt_cache_key":"k","store":false})"));
  EXPECT_TRUE(turn().prewarm);
  EXPECT_EQ(asked_.tokens_max, 0u);
  EXPECT_TRUE(turn().compares);
  EXPECT_EQ(asked_.compare_to, "");
  EXPECT_EQ(turn().store, nullptr);
  EXPECT_EQ(asked_.family, "k");
  EXPECT_GT(asked_.kv.policy.ttl, 0);
  EXPECT_EQ(turn().echo["prompt_cache_options"],
            Json::parse(R"({"mode":"implicit","ttl":"12h","comparison_response_id":"resp_q"})"));
  EXPECT_EQ(turn().echo["store"], false);
}

TEST_F(ResponsesParse, WhatIsNotThereIsRefusedByName) {
  EXPECT_EQ(refused(R"({"input":"x","background":true})"), "background");
  EXPECT_FALSE(parse(R"({"input":"x","background":false})"));
  EXPECT_EQ(refused(R"({"input":"x","conversation":"conv_1"})"), "conversation");
  EXPECT_EQ(refused(R"({"input":"x","prompt":{"id":"p"}})"), "prompt");
  EXPECT_EQ(refused(R"({"input":"x","n":2})"), "n");
  EXPECT_EQ(refused(R"({"input":"x","echo":true})"), "echo");
  EXPECT_EQ(refused(R"({"input":"x","truncation":"some"})"), "truncation");
  EXPECT_EQ(refused(R"({"input":"x","max_output_tokens":0})"), "max_output_tokens");
  EXPECT_EQ(refused(R"({"input":"x","temperature":3})"), "temperature");
  EXPECT_EQ(refused(R"({"input":"x","metadata":{"a":1}})"), "metadata");
  EXPECT_EQ(refused(R"({})"), "input");
  EXPECT_EQ(refused(R"({"input":[]})"), "input");
  EXPECT_EQ(refused(R"({"input":[{"type":"computer_call"}]})"), "input[0].type");
  EXPECT_EQ(refused(R"({"input":[{"role":"tool","content":"x"}]})"), "input[0].role");
  EXPECT_EQ(refused(R"({"input":[{"role":"user"}]})"), "input[0].content");
  EXPECT_EQ(refused(R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})"),
            "input[0].content[0]");
  EXPECT_EQ(refused(R"({"input":[{"type":"function_call_output","call_id":"c","output":""}]})"),
            "input[0].call_id");
}

}  // namespace
}  // namespace quire::responses
