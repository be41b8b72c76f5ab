#include "server/dialect/llama/llama_parse.h"

#include <gtest/gtest.h>

#include "server/dialect/llama/llama_writer.h"
#include "text/tiny_vocab.h"

namespace quire::llama {
namespace {

std::optional<ApiError> parse(const char* body, GenerationRequest& asked) {
  return parse_completion(Json::parse(body),
                          {.vocabulary = 300, .model = "m", .kv = {.kv_format = "f16"}}, asked);
}

TEST(LlamaParse, TakesWhatItsClientsSend) {
  GenerationRequest asked;
  const auto error = parse(R"({"prompt":"Hi","n_predict":5,"temperature":0,"top_k":40,"seed":-1,
      "stop":["x"],"logit_bias":[[15,1.5],[16,false]],"n_probs":2,"cache_prompt":false,"id_slot":-1,
      "repeat_penalty":1.1,"ignore_eos":true,"samplers":["top_k"]})",
                           asked);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(asked.prompts.at(0).text, "Hi");
  EXPECT_EQ(asked.tokens_max, 5u);
  EXPECT_FALSE(asked.seeded);
  EXPECT_EQ(asked.sampling.logit_bias.at(1), (std::pair<TokenId, float>(16, -100.0f)));
  EXPECT_TRUE(asked.logprobs);
  EXPECT_FALSE(asked.kv.policy.reuse);
  GenerationRequest tokens;
  EXPECT_FALSE(parse(R"({"prompt":[1,2,3],"n_predict":-1})", tokens));
  EXPECT_EQ(tokens.prompts.at(0).tokens.size(), 3u);
  EXPECT_FALSE(tokens.tokens_max);
  GenerationRequest wrapped;
  EXPECT_FALSE(parse(R"({"prompt":{"prompt_string":"a"}})", wrapped));
}

TEST(LlamaParse, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> bad[] = {
      {R"({})", "prompt"},
      {R"({"prompt":["a","b"]})", "prompt"},
      {R"({"prompt":{"multimodal_data":[]}})", "prompt"},
      {R"({"prompt":"a","n_predict":-3})", "n_predict"},
      {R"({"prompt":"a","logit_bias":[[9999,1]]})", "logit_bias"},
      {R"({"prompt":"a","logit_bias":[[1,true]]})", "logit_bias"},
      {R"({"prompt":"a","grammar":"root ::= x","json_schema":{"type":"object"}})", "grammar"},
      {R"({"prompt":"a","stop":[""]})", "stop"}};
  for (const auto& [body, param] : bad) {
    GenerationRequest asked;
    const auto error = parse(body, asked);
    ASSERT_TRUE(error) << body;
    EXPECT_EQ(error->param, param) << body;
  }
}

TEST(LlamaWriter, StreamAndWholeSayTheSame) {
  const Tokenizer tokenizer = std::move(Tokenizer::create(tiny_byte_level()).value());
  GenerationRequest asked{.stream = true};
  asked.prompts.push_back({.text = "Hi"});
  const AnswerHead head{.id = "1", .created = 5, .model = "m", .system_fingerprint = "fp_1"};
  const Usage usage{
      .prompt = 9, .completion = 3, .cached = 4, .prefill_seconds = 0.5, .decode_seconds = 0.3};
  LlamaWriter stream(asked, head, tokenizer), body(asked, head, tokenizer);
  std::string text = stream.piece({.text = "a\n"}, {}, usage);
  text += stream.piece({.text = "b", .finish = FinishReason::stop, .stop = "x"}, {}, usage);
  text += stream.end(usage, nullptr);
  EXPECT_EQ(text.find("[DONE]"), std::string::npos);
  const Json last = Json::parse(text.substr(text.rfind("data: ") + 6));
  Json whole = body.whole({{.text = "a\nb", .stop = "x"}}, {}, usage, nullptr);
  EXPECT_EQ(whole["content"], "a\nb");
  EXPECT_EQ(whole["stop_type"], "word");
  EXPECT_EQ(whole["timings"]["prompt_n"], 5);
  EXPECT_EQ(whole["tokens_cached"], 4);
  whole["content"] = "";
  EXPECT_EQ(whole, last);
}

}  // namespace
}  // namespace quire::llama
