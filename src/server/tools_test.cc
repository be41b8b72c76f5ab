#include "server/tools.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

struct Read {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Read&) const = default;
};

Read read(std::string_view text, std::size_t step) {
  ToolCallReader reader;
  Read out;
  const auto take = [&](const std::vector<ToolPiece>& pieces) {
    for (const ToolPiece& p : pieces) {
      if (p.kind == ToolPiece::Kind::content)
        out.content += p.text;
      else if (p.kind == ToolPiece::Kind::call)
        out.calls.push_back({p.text, ""});
      else
        out.calls.at(p.index).second += p.text;
    }
  };
  for (std::size_t i = 0; i < text.size(); i += step) take(reader.add(text.substr(i, step)));
  take(reader.finish());
  return out;
}

// However the text is cut, the same comes out.
Read read(std::string_view text) {
  const Read whole = read(text, text.size() + 1);
  for (std::size_t step = 1; step < text.size(); ++step)
    EXPECT_EQ(read(text, step), whole) << "in pieces of " << step << ": " << text;
  return whole;
}

TEST(Tools, TextWithoutCallsIsText) {
  EXPECT_EQ(read("  Hello < you <tool> {}"), (Read{"  Hello < you <tool> {}", {}}));
  EXPECT_EQ(read("a <tool_cal"), (Read{"a <tool_cal", {}}));
  EXPECT_EQ(read(""), (Read{}));
}

TEST(Tools, CallBetweenTags) {
  const Read r = read(
      "Let me see.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": [1, {\"b\": "
      "\"}\\\"\"}]}}"
      "\n</tool_call>");
  EXPECT_EQ(r.content, "Let me see.\n");
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].first, "get");
  EXPECT_EQ(r.calls[0].second, "{\"a\": [1, {\"b\": \"}\\\"\"}]}");
}

TEST(Tools, SeveralCallsAndNoContent) {
  const Read r = read(
      "\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</"
      "tool_call>\n<tool_call>{\"arguments\":{\"x\":1},"
      "\"name\":\"g\"}</tool_call>\n");
  EXPECT_EQ(r.content, "");
  EXPECT_EQ(r.calls,
            (std::vector<std::pair<std::string, std::string>>{{"f", "{}"}, {"g", "{\"x\":1}"}}));
}

TEST(Tools, BareObjectIsACall) {
  const Read r = read(" {\"name\": \"f\", \"parameters\": {\"city\": \"Paris\"}} ");
  EXPECT_EQ(r.content, "");
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].second, "{\"city\": \"Paris\"}");
}

TEST(Tools, CallWithoutArgumentsHasEmptyOnes) {
  EXPECT_EQ(read("<tool_call>{\"name\": \"now\"}</tool_call>").calls[0].second, "{}");
  EXPECT_EQ(read("<tool_call>{\"name\": \"n\", \"arguments\": null}</tool_call>").calls[0].second,
            "null");
}

TEST(Tools, WhatIsNoCallStaysText) {
  EXPECT_EQ(read("<tool_call>hello</tool_call>").content, "<tool_call>hello</tool_call>");
  EXPECT_EQ(read("{\"answer\": 42}").content, "{\"answer\": 42}");
  EXPECT_EQ(read("{\"answer\": 4").content, "{\"answer\": 4");
}

TEST(Tools, TextAfterACallIsText) {
  const Read r = read("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> done {x}");
  EXPECT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.content, "done {x}");
}

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
  EXPECT_EQ(read(out[1]["content"].get<std::string>()).calls[0].first, "get_weather");
}

}  // namespace
}  // namespace quire
