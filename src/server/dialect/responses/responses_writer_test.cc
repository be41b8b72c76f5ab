#include "server/dialect/responses/responses_writer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/tiny_vocab.h"

namespace quire::responses {
namespace {

// The JSON of every event, whose name is its type and whose number is its place.
std::vector<Json> response_events(std::string_view text) {
  std::vector<Json> out;
  while (!text.empty()) {
    const std::size_t end = text.find("\n\n"), line = text.find("\ndata: ");
    EXPECT_NE(end, text.npos);
    EXPECT_LT(line, end);
    out.push_back(Json::parse(text.substr(line + 7, end - line - 7)));
    EXPECT_EQ(text.substr(0, line), "event: " + out.back()["type"].get<std::string>());
    EXPECT_EQ(out.back()["sequence_number"], out.size() - 1);
    text.remove_prefix(end + 2);
  }
  return out;
}

std::vector<std::string> types_of(const std::vector<Json>& events) {
  std::vector<std::string> out;
  for (const Json& e : events) out.push_back(e["type"].get<std::string>());
  return out;
}

class ResponsesWriterTest : public ::testing::Test {
 protected:
  ResponsesWriter writer(bool stream = true) {
    GenerationRequest asked{.chat = true, .stream = stream};
    asked.logprobs = logprobs_;
    asked.compare_to = compare_to_;
    asked.dropped = dropped_;
    asked.notes = turn_;
    return ResponsesWriter(asked, head_, tokenizer_);
  }

  Tokenizer tokenizer_ = std::move(Tokenizer::create(tiny_byte_level()).value());
  AnswerHead head_{.id = "1",
                   .created = 5,
                   .model = "m",
                   .system_fingerprint = "fp_1",
                   .cache = {.tokens_per_block = 32}};
  std::vector<PromptInfo> prompts_{{.tokens = {104, 105}, .logprobs = {}}};
  std::shared_ptr<Turn> turn_ = [] {
    auto turn = std::make_shared<Turn>();
    turn->store = ResponseStore::open({}).value();
    turn->items = R"([{"id":"msg_1_0","type":"message","role":"user","content":"hi"}])";
    turn->item_count = 1;
    turn->echo = {{"store", true}, {"tools", Json::array()}};
    return turn;
  }();
  bool logprobs_ = false;
  std::string compare_to_;
  std::size_t dropped_ = 0;
  const Usage usage_{.prompt = 9, .completion = 3, .cached = 4, .written = 2};
};

TEST_F(ResponsesWriterTest, AStreamIsNumberedAndEndsWithTheWholeResponse) {
  auto w = writer();
  std::string text = w.begin({});
  text += w.piece({.text = "He"}, prompts_, {});
  text += w.piece({.text = "y \"\n"}, prompts_, {});
  text += w.piece({.finish = FinishReason::stop}, prompts_, {});
  text += w.end(usage_, nullptr);
  const auto all = response_events(text);
  EXPECT_EQ(types_of(all),
            (std::vector<std::string>{"response.created", "response.in_progress",
                                      "response.output_item.added", "response.content_part.added",
                                      "response.output_text.delta", "response.output_text.delta",
                                      "response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", "response.completed"}));
  EXPECT_EQ(all[0]["response"]["status"], "in_progress");
  EXPECT_EQ(all[0]["response"]["output"], Json::array());
  EXPECT_EQ(all[2]["item"]["content"], Json::array());
  EXPECT_EQ(all[6]["text"], "Hey \"\n");
  const Json& response = all.back()["response"];
  EXPECT_EQ(response["id"], "resp_1");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0], all[8]["item"]);
  EXPECT_EQ(response["output"][0]["id"], "msg_1_1");  // after the one item of input
  for (std::size_t i = 3; i < 8; ++i) EXPECT_EQ(all[i]["item_id"], "msg_1_1");
  EXPECT_EQ(response["usage"], Json::parse(R"({"input_tokens":9,
      "input_tokens_details":{"cached_tokens":4,"cache_write_tokens":2},"output_tokens":3,
      "output_tokens_details":{"reasoning_tokens":0},"total_tokens":12})"));
}

TEST_F(ResponsesWriterTest, WholeAndStreamedAreTheSameAndAreStored) {
  auto streamed = writer();
  streamed.begin({});
  streamed.piece({.text = "A"}, prompts_, {});
  streamed.piece({.text = "B", .finish = FinishReason::length}, prompts_, {});
  streamed.end(usage_, nullptr);
  const Json last = read_stored(*turn_->store->find("", "resp_1"));
  const Json whole = writer(false).whole({{.text = "AB", .finish = FinishReason::length}}, prompts_,
                                         usage_, nullptr);
  EXPECT_EQ(last["response"], whole);
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"][0]["status"], "incomplete");
  EXPECT_EQ(last["items"][0]["id"], "msg_1_0");
}

TEST_F(ResponsesWriterTest, TextAndCallsAreItemsOfTheirOwn) {
  auto w = writer();
  std::string text = w.begin({});
  text += w.piece({.text = "I ask."}, prompts_, {});
  text += w.piece(
      {.tools = {{ToolPiece::Kind::call, 0, "f"}, {ToolPiece::Kind::arguments, 0, "{\"a\""}}},
      prompts_, {});
  text += w.piece({.tools = {{ToolPiece::Kind::arguments, 0, ":1}"},
                             {ToolPiece::Kind::call, 1, "g"},
                             {ToolPiece::Kind::arguments, 1, "{}"}},
                   .finish = FinishReason::tool_calls},
                  prompts_, {});
  const auto all = response_events(text + w.end({}, nullptr));
  const Json& output = all.back()["response"]["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["type"], "message");
  EXPECT_EQ(output[1]["name"], "f");
  EXPECT_EQ(output[1]["arguments"], "{\"a\":1}");
  EXPECT_EQ(output[2]["name"], "g");
  EXPECT_NE(output[1]["call_id"], output[2]["call_id"]);
  std::string joined;
  for (const Json& e : all) {
    if (e["type"] == "response.function_call_arguments.delta" && e["output_index"] == 1)
      joined += e["delta"].get<std::string>();
    if (e["type"] == "response.output_item.done") {
      EXPECT_EQ(e["item"], output[e["output_index"].get<std::size_t>()]);
    }
  }
  EXPECT_EQ(joined, "{\"a\":1}");
}

TEST_F(ResponsesWriterTest, ReasoningIsAnItemBeforeTheMessage) {
  auto w = writer();
  std::string text = w.begin({});
  text += w.piece({.reasoning = "Hm"}, prompts_, {});
  text += w.piece({.reasoning = "m.", .text = "Yes."}, prompts_, {});
  text += w.piece({.finish = FinishReason::stop}, prompts_, {});
  text += w.end({.reasoning = 4}, nullptr);
  const auto all = response_events(text);
  const Json& response = all.back()["response"];
  ASSERT_EQ(response["output"].size(), 2u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][0]["id"], "rs_1_1");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hmm.");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "Yes.");
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 4);
  const auto types = types_of(all);
  EXPECT_EQ(std::ranges::count(types, "response.reasoning_text.delta"), 2);
  EXPECT_EQ(std::ranges::count(types, "response.reasoning_text.done"), 1);
}

TEST_F(ResponsesWriterTest, LogprobsComeWithTheTextAndAgainAtTheEnd) {
  logprobs_ = true;
  auto w = writer();
  w.begin({});
  w.piece({.text = "h", .tokens = {{.token = 104, .logprob = -1}}}, prompts_, {});
  w.piece({.text = "i", .tokens = {{.token = 105, .logprob = -2}}, .finish = FinishReason::stop},
          prompts_, {});
  w.end({}, nullptr);
  const Json response = read_stored(*turn_->store->find("", "resp_1"))["response"];
  const Json& logprobs = response["output"][0]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 2u);
  EXPECT_EQ(logprobs[1]["logprob"], -2.0);
}

TEST_F(ResponsesWriterTest, PrewarmingHasNoOutput) {
  turn_->prewarm = true;
  const Json r =
      writer(false).whole({{.finish = FinishReason::length}}, prompts_, {.prompt = 2}, nullptr);
  EXPECT_EQ(r["status"], "completed");
  EXPECT_EQ(r["output"], Json::array());
  EXPECT_EQ(r["usage"]["output_tokens"], 0);
}

TEST_F(ResponsesWriterTest, AFailureIsAnEventAndNothingIsStored) {
  auto w = writer();
  std::string text = w.begin({});
  text += w.failure({.message = "lost", .code = "device"});
  const auto all = response_events(text);
  EXPECT_EQ(all[2]["type"], "error");
  EXPECT_EQ(all[2]["code"], "device");
  EXPECT_EQ(turn_->store->count(), 0u);
}

TEST_F(ResponsesWriterTest, AResponseThatCannotBeStoredSaysSo) {
  turn_->items = "[\"" + std::string(9 << 20, 'x') + "\"]";
  EXPECT_EQ(writer(false).whole({{.text = "x"}}, prompts_, {}, nullptr)["store"], false);
}

// What an explanation becomes is tested in server/cache_diagnostics_test.cc.
TEST_F(ResponsesWriterTest, DiagnosticsNameWhatChanged) {
  Explanation e;
  e.prompt_tokens = 100;
  e.cached_tokens = 32;
  e.missed_tokens = 68;
  e.compared_to = "req_before";
  e.shared_prefix_tokens = 50;
  e.changed_segment = "messages[0]";
  const auto told = [&](bool explained = true) {
    auto w = writer(false);
    if (explained) w.explained(e);
    return w.whole({{.text = "x"}}, prompts_, usage_, nullptr);
  };
  EXPECT_FALSE(told().contains("prompt_cache_diagnostics"));
  turn_->compares = true;
  EXPECT_EQ(told()["prompt_cache_diagnostics"]["type"], "comparison_response_not_found");
  compare_to_ = "resp_before";
  EXPECT_EQ(told()["prompt_cache_diagnostics"],
            Json::parse(R"({"type":"cache_miss","reason":"input_changed","cache_missed_tokens":68,
                            "comparison_reusable_tokens":50})"));
  EXPECT_EQ(told(false)["prompt_cache_diagnostics"]["type"], "unavailable");
  dropped_ = 2;
  EXPECT_EQ(told()["prompt_cache_diagnostics"]["reason"], "context_compacted");
  e.other_tools = true;
  EXPECT_EQ(told()["prompt_cache_diagnostics"]["reason"], "tools_changed");
  e.compare_missing = true;  // it is stored, but the engine has forgotten its prompt
  EXPECT_EQ(told()["prompt_cache_diagnostics"]["type"], "unavailable");
}

}  // namespace
}  // namespace quire::responses
