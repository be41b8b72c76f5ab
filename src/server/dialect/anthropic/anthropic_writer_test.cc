#include "server/dialect/anthropic/anthropic_writer.h"

#include <gtest/gtest.h>

#include "engine/explain.h"

namespace quire::anthropic {
namespace {

constexpr Nanoseconds kMinutes = 60'000'000'000;

struct Event {
  std::string name;
  Json data;
};

// Every event has a name, which its data repeats.
std::vector<Event> events(std::string_view text) {
  std::vector<Event> out;
  while (!text.empty()) {
    const std::size_t line = text.find('\n'), end = text.find("\n\n");
    EXPECT_TRUE(text.starts_with("event: ") && text.substr(line + 1).starts_with("data: ")) << text;
    out.push_back({std::string(text.substr(7, line - 7)),
                   Json::parse(text.substr(line + 7, end - line - 7))});
    EXPECT_EQ(out.back().data["type"], out.back().name);
    text.remove_prefix(end + 2);
  }
  return out;
}
std::vector<std::string> names(const std::vector<Event>& events) {
  std::vector<std::string> out;
  for (const Event& e : events) out.push_back(e.name);
  return out;
}

AnthropicWriter writer(std::uint32_t tokens_max = 16) {
  return AnthropicWriter({.chat = true, .tokens_max = tokens_max}, {.id = "1", .model = "m"});
}

TEST(AnthropicWriter, AStreamHasItsEventsInOrder) {
  AnthropicWriter w = writer();
  std::string text = w.begin({.prompt = 9, .cached = 4});
  text += w.piece({.text = "He"}, {}, {});
  text += w.piece({.text = "y"}, {}, {});
  text += w.piece({.finish = FinishReason::stop}, {}, {});
  text += w.end({.prompt = 9, .completion = 3, .cached = 4}, nullptr);
  const auto all = events(text);
  EXPECT_EQ(names(all),
            (std::vector<std::string>{"message_start", "content_block_start", "ping",
                                      "content_block_delta", "content_block_delta",
                                      "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(all[0].data["message"]["id"], "msg_1");
  EXPECT_EQ(all[0].data["message"]["content"], Json::array());
  EXPECT_EQ(all[0].data["message"]["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(all[0].data["message"]["usage"]["input_tokens"], 5);
  EXPECT_EQ(all[3].data["delta"], (Json{{"type", "text_delta"}, {"text", "He"}}));
  EXPECT_EQ(all[6].data["delta"]["stop_reason"], "end_turn");
  EXPECT_EQ(all[6].data["usage"]["output_tokens"], 3);
  EXPECT_FALSE(all[6].data.contains("kv"));
}

TEST(AnthropicWriter, CallsAreBlocksOfTheirOwn) {
  AnthropicWriter w = writer();
  std::string text = w.piece({.text = "I look."}, {}, {});
  text += w.piece(
      {.tools = {{ToolPiece::Kind::call, 0, "f"}, {ToolPiece::Kind::arguments, 0, "{\"a\":"}}}, {},
      {});
  text +=
      w.piece({.tools = {{ToolPiece::Kind::arguments, 0, "1}"}, {ToolPiece::Kind::call, 1, "g"}},
               .finish = FinishReason::tool_calls},
              {}, {});
  text += w.end({.prompt = 2, .completion = 5}, {{"cached_tokens", 0}});
  const auto all = events(text);
  EXPECT_EQ(names(all), (std::vector<std::string>{
                            "content_block_start", "ping", "content_block_delta",
                            "content_block_stop", "content_block_start", "content_block_delta",
                            "content_block_delta", "content_block_stop", "content_block_start",
                            "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(all[4].data["index"], 1);
  EXPECT_EQ(all[4].data["content_block"]["name"], "f");
  EXPECT_TRUE(all[4].data["content_block"]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(all[5].data["delta"]["partial_json"], "{\"a\":");
  EXPECT_EQ(all[8].data["index"], 2);
  EXPECT_EQ(all[10].data["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(all[10].data["kv"]["cached_tokens"], 0);
}

TEST(AnthropicWriter, ReasoningIsABlockBeforeTheText) {
  AnthropicWriter w = writer();
  std::string text = w.piece({.reasoning = "hm"}, {}, {});
  text += w.piece({.reasoning = " so", .text = "Yes"}, {}, {});
  text += w.piece({.finish = FinishReason::stop}, {}, {});
  const auto all = events(text);
  EXPECT_EQ(names(all), (std::vector<std::string>{
                            "content_block_start", "ping", "content_block_delta",
                            "content_block_delta", "content_block_delta", "content_block_stop",
                            "content_block_start", "content_block_delta", "content_block_stop"}));
  EXPECT_EQ(all[0].data["content_block"]["type"], "thinking");
  EXPECT_EQ(all[3].data["delta"], (Json{{"type", "thinking_delta"}, {"thinking", " so"}}));
  EXPECT_EQ(all[4].data["delta"]["type"], "signature_delta");
  EXPECT_EQ(all[6].data["index"], 1);
  const Json whole = w.whole({{.reasoning = "hm so", .text = "Yes"}}, {},
                             {.prompt = 2, .completion = 5, .reasoning = 3}, nullptr);
  EXPECT_EQ(whole["content"][0]["thinking"], "hm so");
  EXPECT_EQ(whole["content"][1]["text"], "Yes");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["thinking_tokens"], 3);
}

TEST(AnthropicWriter, NothingSaidIsNoBlock) {
  AnthropicWriter w = writer(0);
  std::string text = w.begin({.prompt = 3});
  text += w.piece({.finish = FinishReason::length}, {}, {});
  text += w.end({.prompt = 3}, nullptr);
  const auto all = events(text);
  EXPECT_EQ(names(all),
            (std::vector<std::string>{"message_start", "message_delta", "message_stop"}));
  EXPECT_EQ(all[1].data["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(w.whole({{.finish = FinishReason::length}}, {}, {.prompt = 3}, nullptr)["content"],
            Json::array());
}

TEST(AnthropicWriter, StopReasons) {
  const auto whole = [](WholeAnswer a, std::uint64_t completion) {
    return writer(16).whole({std::move(a)}, {}, {.prompt = 3, .completion = completion}, nullptr);
  };
  EXPECT_EQ(whole({.text = "a"}, 2)["stop_reason"], "end_turn");
  EXPECT_EQ(whole({.text = "a", .finish = FinishReason::length}, 16)["stop_reason"], "max_tokens");
  EXPECT_EQ(whole({.text = "a", .finish = FinishReason::length}, 15)["stop_reason"],
            "model_context_window_exceeded");
  const Json stopped = whole({.text = "a", .stop = "END"}, 2);
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
  const Json called = whole(
      {.calls = {{"f", R"({"a": 1})"}, {"g", R"({"cut)"}}, .finish = FinishReason::tool_calls}, 2);
  EXPECT_EQ(called["stop_reason"], "tool_use");
  EXPECT_EQ(called["content"][0]["input"], (Json{{"a", 1}}));
  EXPECT_EQ(called["content"][1]["input"], Json::object());
  for (const char* field : {"id", "type", "role", "model", "content", "stop_reason",
                            "stop_sequence", "usage", "diagnostics"})
    EXPECT_TRUE(called.contains(field)) << field;
}

TEST(AnthropicWriter, DiagnosticsSayWhatChanged) {
  Explanation e;
  e.prompt_tokens = 100;
  e.cached_tokens = 32;
  e.missed_tokens = 68;
  e.compared_to = "req_before";
  e.changed_segment = "system[0]";
  const auto told = [&](const char* compare_to, bool explained) {
    AnthropicWriter w({.chat = true, .compare_to = compare_to}, {.id = "1", .model = "m"});
    if (explained) w.explained(e);
    const Json whole = w.whole({{.text = "a"}}, {}, {.prompt = 100}, nullptr)["diagnostics"];
    EXPECT_EQ(events(w.begin({.prompt = 100}))[0].data["message"]["diagnostics"], whole);
    return whole;
  };
  EXPECT_TRUE(told("", true).is_null());  // nobody asked
  EXPECT_EQ(told("msg_before", true), Json::parse(R"({"cache_miss_reason":{"type":"system_changed",
                            "cache_missed_input_tokens":68}})"));
  EXPECT_EQ(told("msg_before", false),  // the engine remembers nothing
            Json::parse(R"({"cache_miss_reason":{"type":"unavailable"}})"));
}

// Each token of the prompt is in exactly one count.
TEST(AnthropicUsage, CountsAddUpToThePrompt) {
  const auto mark = [](std::uint32_t tokens, int minutes, bool held = true) {
    return KeptPrefix{tokens, tokens / 32 * 32, minutes * kMinutes, held};
  };
  const auto check = [](const Usage& u, const CacheReporting& r = {}) {
    const PromptUsage p = prompt_usage(u, r);
    EXPECT_EQ(p.input + p.read + p.created_5m + p.created_1h, u.prompt);
    return std::vector<std::uint64_t>{p.input, p.read, p.created_5m, p.created_1h};
  };
  using Counts = std::vector<std::uint64_t>;
  EXPECT_EQ(check({.prompt = 100}), (Counts{100, 0, 0, 0}));
  EXPECT_EQ(check({.prompt = 100, .cached = 64}), (Counts{36, 64, 0, 0}));
  EXPECT_EQ(check({.prompt = 100, .kept = {mark(70, 5)}}), (Counts{36, 0, 64, 0}));
  EXPECT_EQ(check({.prompt = 100, .cached = 64, .kept = {mark(70, 5)}}), (Counts{36, 64, 0, 0}));
  EXPECT_EQ(check({.prompt = 100, .cached = 32, .kept = {mark(70, 5)}}), (Counts{36, 32, 32, 0}));
  EXPECT_EQ(check({.prompt = 100, .kept = {mark(40, 60), mark(99, 5)}}), (Counts{4, 0, 64, 32}));
  EXPECT_EQ(check({.prompt = 100, .cached = 50, .kept = {mark(40, 60), mark(99, 5)}}),
            (Counts{4, 50, 46, 0}));
  EXPECT_EQ(check({.prompt = 100, .kept = {mark(40, 60), mark(99, 5, false)}}),
            (Counts{68, 0, 0, 32}));
}

TEST(AnthropicUsage, TheVendorReadsOnlyThroughBreakpoints) {
  CacheReporting r{.vendor = true, .tokens_min = 32, .tokens_per_block = 32};
  for (std::uint32_t end = 10; end <= 400; end += 10) r.parts.push_back(end);
  const auto read = [&](std::uint32_t cached, std::vector<std::uint32_t> marks) {
    Usage u{.prompt = 401, .cached = cached};
    for (const std::uint32_t m : marks) u.kept.push_back({m, m / 32 * 32, 5 * kMinutes});
    const PromptUsage p = prompt_usage(u, r);
    EXPECT_EQ(p.input + p.read + p.created_5m + p.created_1h, u.prompt);
    return p.read;
  };
  EXPECT_EQ(read(128, {}), 0u);       // a hit without a breakpoint
  EXPECT_EQ(read(128, {100}), 100u);  // to the breakpoint
  EXPECT_EQ(read(128, {300}), 128u);  // 17 blocks back; the 130th token was computed
  EXPECT_EQ(read(128, {400}), 0u);    // 20 blocks back is token 200
  EXPECT_EQ(read(128, {130, 400}), 128u);
  r.tokens_min = 200;
  EXPECT_EQ(read(128, {130}), 0u);
}

TEST(AnthropicErrors, HaveTheVendorsShape) {
  const auto of = [](const ApiError& e) {
    const HttpResponse r = error_response(e, "req_1");
    const Json body = Json::parse(r.body);
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["request_id"], "req_1");
    return std::pair(r.status, body["error"]["type"].get<std::string>() + ": " +
                                   body["error"]["message"].get<std::string>());
  };
  using Seen = std::pair<int, std::string>;
  EXPECT_EQ(of(bad_value("temperature", "must be a number")),
            (Seen{400, "invalid_request_error: temperature: must be a number"}));
  EXPECT_EQ(of(bad_value("max_tokens", "is required", "missing_required_parameter")),
            (Seen{400, "invalid_request_error: max_tokens: Field required"}));
  EXPECT_EQ(of({.status = 404, .code = "model_not_found", .details = {{"model", "x"}}}),
            (Seen{404, "not_found_error: model: x"}));
  EXPECT_EQ(
      of({.code = "context_length_exceeded", .details = {{"tokens", 3100}, {"tokens_max", 2048}}}),
      (Seen{400, "invalid_request_error: prompt is too long: 3100 tokens > 2048 maximum"}));
  EXPECT_EQ(of(shutting_down()).first, 529);
  EXPECT_EQ(of({.status = 429, .message = "m", .code = "queue_full"}),
            (Seen{529, "overloaded_error: m"}));
  EXPECT_EQ(of({.status = 429, .message = "m", .code = "kv_quota_exceeded"}),
            (Seen{429, "rate_limit_error: m"}));
  EXPECT_EQ(of({.status = 408, .message = "m"}), (Seen{504, "timeout_error: m"}));
  EXPECT_EQ(of(internal_error()).first, 500);
  const auto midway = events(writer().failure(shutting_down()));
  ASSERT_EQ(midway.size(), 1u);
  EXPECT_EQ(midway[0].data["error"]["type"], "overloaded_error");
}

}  // namespace
}  // namespace quire::anthropic
