#include "server/tools.h"

#include <gtest/gtest.h>

#include "server/answer_format/answer_format.h"
#include "server/api_error.h"

namespace quire {
namespace {

TEST(Tools, TemplateWithoutToolsGetsThemAsText) {
  const Json tools = {{{"type", "function"}, {"function", {{"name", "get_weather"}}}}};
  const Json messages = {{{"role", "system"}, {"content", "Be brief."}},
                         {{"role", "assistant"},
                          {"content", ""},
                          {"tool_calls",
                           {{{"type", "function"},
                             {"function", {{"name", "get_weather"}, {"arguments", {{"x", 1}}}}}}}}},
                         {{"role", "tool"}, {"content", "18 C"}}};
  const Json out = messages_with_tools(messages, tools);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_NE(out[0]["content"].get<std::string>().find("get_weather"), std::string::npos);
  EXPECT_TRUE(out[0]["content"].get<std::string>().ends_with("Be brief."));
  EXPECT_NE(out[1]["content"].get<std::string>().find("<tool_call>"), std::string::npos);
  EXPECT_EQ(out[2]["role"], "user");
  // What the reader reads is what was written.
  const auto reader = find_call_format("hermes")->reader(tools);
  EXPECT_EQ(reader->add(out[1]["content"].get<std::string>())[0].text, "get_weather");
}

const Json kTurns = parse_json(R"([
    {"role":"user","content":"x"},
    {"role":"assistant","content":"","reasoning_content":"Hm.","tool_calls":[
      {"id":"call_a","type":"function","function":{"name":"f","arguments":{"x":1}}},
      {"id":"call_b","type":"function","function":{"name":"g","arguments":{}}}]},
    {"role":"tool","tool_call_id":"call_b","content":"2"},
    {"role":"tool","content":"1"}])")
                        .value();

TEST(Tools, IdsOfCallsAreNumbers) {
  const Json out = messages_for_template(kTurns, nullptr, "");
  EXPECT_EQ(out[1]["tool_calls"][0]["id"], "000000000");
  EXPECT_EQ(out[1]["tool_calls"][1]["id"], "000000001");
  EXPECT_EQ(out[2]["tool_call_id"], "000000001");
  Json others = kTurns;
  others[1]["tool_calls"][0]["id"] = "call_c";
  others[1]["tool_calls"][1]["id"] = others[2]["tool_call_id"] = "call_d";
  EXPECT_EQ(messages_for_template(others, nullptr, ""), out) << "ids must not change a prompt";
}

TEST(Tools, TemplatesFindReasoningAndToolsByTheirNames) {
  EXPECT_EQ(messages_for_template(kTurns, nullptr, "")[1]["reasoning"], "Hm.");
  EXPECT_FALSE(messages_for_template(kTurns, nullptr, "")[1].contains("thinking"));
  EXPECT_EQ(messages_for_template(kTurns, nullptr, "{{ message.thinking }}")[1]["thinking"], "Hm.");
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const Json phi = messages_for_template(kTurns, tools, "<|tool|>{{ message['tools'] }}");
  ASSERT_EQ(phi.size(), kTurns.size() + 1);
  EXPECT_EQ(phi[0]["tools"], dump(tools));
  EXPECT_EQ(with_text_arguments(kTurns)[1]["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
}

}  // namespace
}  // namespace quire
