#include "server/dialect/openai/openai_parse.h"

#include <gtest/gtest.h>

namespace quire::openai {
namespace {

const ParseContext kContext{.vocabulary = 1000, .kv = {.kv_format = "f16"}};

Json chat(Json more = Json::object()) {
  Json body{{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

GenerationRequest good(const Json& body) {
  GenerationRequest asked;
  const auto error = parse_chat(body, kContext, asked);
  EXPECT_FALSE(error) << body << ": " << error->message;
  return asked;
}

// The parameter that is refused, with its code.
std::string bad(const Json& body, bool completion = false) {
  GenerationRequest asked;
  const auto error =
      completion ? parse_completion(body, kContext, asked) : parse_chat(body, kContext, asked);
  if (!error) return "accepted";
  return error->param + " " + std::to_string(error->status) + " " + error->code;
}

TEST(OpenAiParse, PlainChat) {
  const GenerationRequest a = good(chat());
  EXPECT_EQ(a.model, "m");
  EXPECT_EQ(a.messages[0]["content"], "hi");
  EXPECT_EQ(a.sampling.temperature, 1);
  EXPECT_FALSE(a.tokens_max);
  EXPECT_EQ(a.n, 1u);
}

TEST(OpenAiParse, WhatARequestDoesNotSayIsTheServers) {
  ParseContext context = kContext;
  context.model = "served";
  context.sampling = {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1.1f};
  GenerationRequest a;
  ASSERT_FALSE(parse_chat({{"messages", {{{"role", "user"}, {"content", "x"}}}}}, context, a));
  EXPECT_EQ(a.model, "served");
  EXPECT_EQ(a.sampling.temperature, 0.6f);
  EXPECT_EQ(a.sampling.top_k, 20u);
  EXPECT_EQ(a.sampling.top_p, 0.95f);
  EXPECT_EQ(a.sampling.repetition_penalty, 1.1f);
  GenerationRequest b;
  ASSERT_FALSE(parse_chat(chat({{"temperature", 0}, {"top_k", -1}, {"top_p", 1}}), context, b));
  EXPECT_EQ(b.model, "m");
  EXPECT_EQ(b.sampling.temperature, 0);
  EXPECT_EQ(b.sampling.top_k, 0u);
  EXPECT_EQ(b.sampling.top_p, 1);
  GenerationRequest beams;  // ranked by the model's own probabilities
  ASSERT_FALSE(parse_chat(chat({{"use_beam_search", true}, {"n", 2}}), context, beams));
  EXPECT_EQ(beams.sampling.temperature, 0);
  EXPECT_EQ(beams.sampling.repetition_penalty, 1);
}

TEST(OpenAiParse, ShapesOfAnswersAsOtherServersNameThem) {
  using Kind = AnswerGrammar::Kind;
  const Json schema{{"type", "object"}};
  for (const char* name : {"guided_json", "json_schema"}) {
    const AnswerGrammar g = good(chat({{name, schema}})).grammar;
    EXPECT_EQ(g.kind, Kind::json_schema) << name;
    EXPECT_EQ(g.param, name);
    EXPECT_EQ(good(chat({{name, schema.dump()}})).grammar.schema, schema) << name;
  }
  EXPECT_EQ(good(chat({{"guided_regex", "a+"}})).grammar.kind, Kind::regex);
  EXPECT_EQ(good(chat({{"guided_grammar", "root ::= \"a\""}})).grammar.kind, Kind::ebnf);
  EXPECT_EQ(good(chat({{"grammar", "root ::= \"a\""}})).grammar.kind, Kind::ebnf);
  EXPECT_EQ(good(chat({{"guided_choice", {"a", "b"}}})).grammar.choices.size(), 2u);
  EXPECT_EQ(good(chat({{"structured_outputs", {{"choice", {"a"}}}}})).grammar.kind, Kind::choice);
  EXPECT_EQ(good(chat({{"structured_outputs", {{"json_object", true}}}})).grammar.kind,
            Kind::json_object);
  EXPECT_EQ(good(chat({{"grammar", ""}})).grammar.kind, Kind::none);
  EXPECT_EQ(bad(chat({{"guided_json", 3}})), "guided_json 400 invalid_value");
  EXPECT_EQ(bad(chat({{"guided_choice", {1}}})), "guided_choice 400 invalid_value");
  EXPECT_EQ(bad(chat({{"guided_json", schema}, {"guided_regex", "a"}})),
            "guided_regex 400 invalid_value");
  EXPECT_EQ(bad(chat({{"response_format", {{"type", "json_object"}}}, {"guided_regex", "a"}})),
            "guided_regex 400 invalid_value");
}

TEST(OpenAiParse, TemplatesAndControlTokensNeedTrust) {
  EXPECT_EQ(bad(chat({{"chat_template", "x"}})), "chat_template 403 chat_template_not_trusted");
  const Json raw{{"model", "m"}, {"prompt", "<s>"}};
  GenerationRequest asked, plain;
  ParseContext context = kContext;
  context.trust_templates = true;
  EXPECT_FALSE(parse_chat(chat({{"chat_template", "x"}}), context, asked));
  EXPECT_FALSE(parse_completion(raw, context, asked));
  EXPECT_TRUE(asked.parse_special);
  context.parse_special = false;
  EXPECT_FALSE(parse_completion(raw, context, plain));
  EXPECT_FALSE(plain.parse_special);
  Json wants = raw;
  wants["parse_special"] = true;
  EXPECT_EQ(parse_completion(wants, context, plain)->param, "parse_special");
}

TEST(OpenAiParse, ErrorsNameTheParameter) {
  EXPECT_EQ(bad(Json::array()), " 400 invalid_json");
  EXPECT_EQ(bad(chat({{"model", 5}})), "model 400 invalid_value");
  EXPECT_EQ(bad({{"model", "m"}}), "messages 400 missing_required_parameter");
  EXPECT_EQ(bad(chat({{"messages", Json::array()}})), "messages 400 invalid_value");
  EXPECT_EQ(bad(chat({{"messages", {{{"role", "robot"}, {"content", "x"}}}}})),
            "messages[0].role 400 invalid_value");
  EXPECT_EQ(bad(chat({{"messages", {{{"role", "user"}}}}})),
            "messages[0].content 400 missing_required_parameter");
  EXPECT_EQ(bad(chat({{"temperature", 3}})), "temperature 400 invalid_value");
  EXPECT_EQ(bad(chat({{"temperature", "hot"}})), "temperature 400 invalid_value");
  EXPECT_EQ(bad(chat({{"top_p", 0}})), "top_p 400 invalid_value");
  EXPECT_EQ(bad(chat({{"n", 0}})), "n 400 invalid_value");
  EXPECT_EQ(bad(chat({{"n", 17}})), "n 400 invalid_value");
  EXPECT_EQ(bad(chat({{"n", 1.5}})), "n 400 invalid_value");
  EXPECT_EQ(bad(chat({{"max_tokens", 0}})), "max_tokens 400 invalid_value");
  EXPECT_EQ(bad(chat({{"max_tokens", -5}})), "max_tokens 400 invalid_value");
  EXPECT_EQ(bad(chat({{"max_tokens", 1e300}})), "max_tokens 400 invalid_value");
  EXPECT_EQ(bad(chat({{"seed", 18446744073709551615ull}})), "seed 400 invalid_value");
  EXPECT_EQ(bad(chat({{"top_logprobs", 3}})), "top_logprobs 400 invalid_value");
  EXPECT_EQ(bad(chat({{"stop", ""}})), "stop 400 invalid_value");
  EXPECT_EQ(bad(chat({{"stop", std::string(300, 'x')}})), "stop 400 invalid_value");
  EXPECT_EQ(bad(chat({{"stop", std::vector<std::string>(17, "x")}})), "stop 400 invalid_value");
  EXPECT_EQ(bad(chat({{"bad_words", {std::string(300, 'x')}}})), "bad_words 400 invalid_value");
  EXPECT_EQ(bad(chat({{"bad_words", std::vector<std::string>(129, "x")}})),
            "bad_words 400 invalid_value");
  EXPECT_EQ(bad(chat({{"stop_token_ids", std::vector<int>(1025, 5)}})),
            "stop_token_ids 400 invalid_value");
  Json many = Json::object();
  for (int i = 0; i <= 1024; ++i) many[std::to_string(i)] = 0;
  EXPECT_EQ(bad(chat({{"logit_bias", many}})), "logit_bias 400 invalid_value");
  EXPECT_EQ(bad(chat({{"logit_bias", {{"1000", 1}}}})), "logit_bias 400 invalid_value");
  EXPECT_EQ(bad(chat({{"logit_bias", {{"5", 101}}}})), "logit_bias 400 invalid_value");
  EXPECT_EQ(bad(chat({{"stream_options", {{"include_usage", true}}}})),
            "stream_options 400 invalid_value");
  EXPECT_EQ(bad(chat({{"response_format", {{"type", "yaml"}}}})),
            "response_format.type 400 invalid_value");
  EXPECT_EQ(bad(chat({{"best_of", 2}, {"stream", true}})), "best_of 400 invalid_value");
  EXPECT_EQ(bad(chat({{"modalities", {"audio"}}})), "modalities 400 invalid_value");
  EXPECT_EQ(bad(chat({{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}})),
            "messages[0].content[0] 400 invalid_value");
  EXPECT_EQ(bad(chat({{"cache_salt", "a/b"}})), "cache_salt 400 invalid_value");
}

TEST(OpenAiParse, NullMeansAbsent) {
  const GenerationRequest a = good(
      chat({{"temperature", nullptr}, {"stop", nullptr}, {"tools", nullptr}, {"kv", nullptr}}));
  EXPECT_EQ(a.sampling.temperature, 1);
  EXPECT_FALSE(a.kv.given);
}

TEST(OpenAiParse, UnknownFieldsPassUnlessStrict) {
  good(chat({{"frobnicate", 1}}));
  ParseContext strict = kContext;
  strict.strict_fields = true;
  GenerationRequest asked;
  EXPECT_EQ(parse_chat(chat({{"frobnicate", 1}}), strict, asked)->param, "frobnicate");
  GenerationRequest again;
  EXPECT_FALSE(parse_chat(chat({{"user", "u"}, {"max_tokens", 5}}), strict, again));
}

TEST(OpenAiParse, NewerNameOfTheLimitWins) {
  EXPECT_EQ(good(chat({{"max_tokens", 5}, {"max_completion_tokens", 7}})).tokens_max, 7u);
  EXPECT_EQ(good(chat({{"max_tokens", 5}})).tokens_max, 5u);
}

TEST(OpenAiParse, ContentPartsAreJoinedAndMarked) {
  const GenerationRequest a =
      good(chat({{"messages",
                  {{{"role", "developer"}, {"content", "be"}},
                   {{"role", "user"},
                    {"content",
                     {{{"type", "text"},
                       {"text", "one"},
                       {"prompt_cache_breakpoint", {{"mode", "explicit"}, {"ttl", "30m"}}}},
                      {{"type", "text"}, {"text", "two"}}}}}}}}));
  EXPECT_EQ(a.messages[0]["role"], "system");
  EXPECT_EQ(a.messages[1]["content"], "one\ntwo");
  ASSERT_EQ(a.breakpoints.size(), 1u);
  EXPECT_EQ(a.breakpoints[0], (CacheBreakpoint{1, 3, Nanoseconds{30} * 60 * 1'000'000'000}));
}

TEST(OpenAiParse, ToolCallIdsAreCheckedAndLeftOut) {
  const Json call = {{"id", "call_1"},
                     {"type", "function"},
                     {"function", {{"name", "f"}, {"arguments", "{\"a\": 1}"}}}};
  Json messages = {{{"role", "user"}, {"content", "x"}},
                   {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
                   {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "18"}}};
  const GenerationRequest a = good(chat({{"messages", messages}}));
  EXPECT_EQ(a.messages.dump().find("call_1"), std::string::npos);
  EXPECT_EQ(a.messages[1]["tool_calls"][0]["function"]["arguments"]["a"], 1);
  EXPECT_EQ(a.messages[2]["name"], "f");
  messages[2]["tool_call_id"] = "call_2";
  EXPECT_EQ(bad(chat({{"messages", messages}})), "messages[2].tool_call_id 400 invalid_value");
}

TEST(OpenAiParse, ToolChoice) {
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  EXPECT_EQ(good(chat({{"tools", tools}})).tool_choice.kind, ToolChoice::Kind::automatic);
  EXPECT_EQ(good(chat({{"tools", tools}, {"tool_choice", "none"}})).tool_choice.kind,
            ToolChoice::Kind::none);
  const GenerationRequest named = good(chat(
      {{"tools", tools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}}));
  EXPECT_EQ(named.tool_choice.kind, ToolChoice::Kind::required);
  EXPECT_EQ(named.tool_choice.allowed, std::vector<std::string>{"f"});
  EXPECT_EQ(bad(chat({{"tools", tools},
                      {"tool_choice", {{"type", "function"}, {"function", {{"name", "g"}}}}}})),
            "tool_choice 400 invalid_value");
  EXPECT_EQ(bad(chat({{"tool_choice", "required"}})), "tool_choice 400 invalid_value");
  EXPECT_EQ(good(chat({{"functions", {{{"name", "f"}}}}})).extras["old_functions"], true);
}

TEST(OpenAiParse, KvObjectRefusesTyposAndWhatIsNotThere) {
  const GenerationRequest a = good(chat({{"kv",
                                          {{"reuse", "none"},
                                           {"write", "prompt"},
                                           {"salt", "s"},
                                           {"priority", 100},
                                           {"retention", {{"ttl", "90s"}}},
                                           {"report", {"timing", "seed"}}}}}));
  EXPECT_FALSE(a.kv.policy.reuse);
  EXPECT_EQ(a.kv.policy.write, KvWrite::prompt);
  EXPECT_EQ(a.kv.policy.salt, "s");
  EXPECT_EQ(a.kv.policy.priority, 100);
  EXPECT_EQ(a.kv.policy.ttl, 90'000'000'000);
  EXPECT_TRUE(a.kv.report_timing);
  EXPECT_EQ(bad(chat({{"kv", {{"resue", "none"}}}})), "kv.resue 400 unknown_parameter");
  EXPECT_EQ(bad(chat({{"kv", {{"budget", {{"tokens", 5}}}}}})), "kv.budget 400 lossy_not_allowed");
  EXPECT_EQ(bad(chat({{"kv", {{"budget", {{"tokens", 0}}}, {"allow_lossy", true}}}})),
            "kv.budget.tokens 400 invalid_value");
  EXPECT_EQ(
      bad(chat(
          {{"kv", {{"budget", {{"tokens", 5}, {"policy", "nobody"}}}, {"allow_lossy", true}}}})),
      "kv.budget 400 invalid_value");
  EXPECT_EQ(bad(chat({{"kv", {{"reuse", "approximate"}}}})), "kv.reuse 400 lossy_not_allowed");
  EXPECT_EQ(bad(chat({{"kv", {{"recompute", 0.2}}}})), "kv.recompute 400 invalid_value");
  EXPECT_EQ(
      good(chat({{"kv", {{"reuse", "approximate"}, {"recompute", 0.25}, {"allow_lossy", true}}}}))
          .kv.policy.blend,
      0.25);
  EXPECT_EQ(bad(chat({{"kv", {{"select", {{"tokens", 5}}}}}})), "kv.select 400 lossy_not_allowed");
  EXPECT_EQ(bad(chat({{"kv", {{"select", {{"policy", "nobody"}}}, {"allow_lossy", true}}}})),
            "kv.select 400 invalid_value");
  EXPECT_EQ(good(chat({{"kv", {{"select", {{"tokens", 512}}}, {"allow_lossy", true}}}}))
                .kv.policy.select->text(),
            "quest:512");
  EXPECT_EQ(good(chat({{"kv", {{"session", "x"}}}})).kv.session, "x");
  EXPECT_EQ(bad(chat({{"kv", {{"priority", 101}}}})), "kv.priority 400 invalid_value");
}

TEST(OpenAiParse, FormatsOfTheCacheAreChosenPerRequest) {
  const auto stored = [](const Json& kv) {
    const GenerationRequest a = good(chat({{"kv", kv}}));
    return a.kv.policy.storage ? a.kv.policy.storage->name() : std::string("as the server has it");
  };
  EXPECT_EQ(stored({{"format", "auto"}}), "as the server has it");
  EXPECT_EQ(stored({{"format", "f16"}}), "as the server has it");
  EXPECT_EQ(stored({{"format", "int8"}}), "int8");
  EXPECT_EQ(stored({{"format", "fp8_e5m2"}}), "fp8-e5m2");  // as vLLM calls it
  EXPECT_EQ(stored({{"format", "q4_0"}, {"allow_lossy", true}}), "q4_0");
  EXPECT_EQ(stored({{"format", {{"k", "int8"}, {"v", "q4_0"}}}, {"allow_lossy", true}}),
            "int8/q4_0");
  EXPECT_EQ(stored({{"format",
                     {{"k", "kivi-2"},
                      {"group", 32},
                      {"recent_exact", 100},
                      {"sinks", 4},
                      {"skip_layers", {3, 0, 3}}}},
                    {"allow_lossy", true}}),
            "kivi-2 recent=100 sinks=4 skip=0+3");

  const auto refused = [](const Json& kv) { return bad(chat({{"kv", kv}})); };
  EXPECT_EQ(refused({{"format", "int9"}}), "kv.format 400 kv_format_unsupported");
  EXPECT_EQ(refused({{"format", {{"k", "f32"}, {"v", "int8"}}}}),
            "kv.format 400 kv_format_unsupported");
  EXPECT_EQ(refused({{"format", "q4_0"}}), "kv.format 400 lossy_not_allowed");
  EXPECT_EQ(refused({{"format", "planned"}, {"allow_lossy", true}}),
            "kv.format 400 kv_format_unsupported");
  EXPECT_EQ(refused({{"format", {{"k", "int8"}, {"group", 64}}}}),
            "kv.format.group 400 kv_format_unsupported");
  EXPECT_EQ(refused({{"format", {{"k", "int8"}, {"skip_layers", "all"}}}}),
            "kv.format.skip_layers 400 invalid_value");
  EXPECT_EQ(refused({{"format", {{"k", "int8"}, {"bits", 4}}}}),
            "kv.format.bits 400 unknown_parameter");
  EXPECT_EQ(refused({{"format", 8}}), "kv.format 400 kv_format_unsupported");

  ParseContext narrow = kContext;
  narrow.kv.check_storage = [](const StoragePolicy&) -> Status {
    return Error{Code::unsupported, "heads are too narrow"};
  };
  GenerationRequest a;
  const auto error = parse_chat(chat({{"kv", {{"format", "int8"}}}}), narrow, a);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message.find("heads are too narrow") == std::string::npos, false);
}

TEST(OpenAiParse, HeaderPolicyCountsWhereTheBodyIsSilent) {
  ParseContext context = kContext;
  context.kv_header = R"({"salt": "h", "reuse": "none"})";
  GenerationRequest a;
  ASSERT_FALSE(parse_chat(chat({{"kv", {{"salt", "b"}}}}), context, a));
  EXPECT_EQ(a.kv.policy.salt, "b");
  EXPECT_FALSE(a.kv.policy.reuse);
  context.kv_header = "nonsense";
  GenerationRequest b;
  EXPECT_EQ(parse_chat(chat(), context, b)->param, "x-kv-policy");
}

TEST(OpenAiParse, TenantOfAnotherIsForbidden) {
  ParseContext context = kContext;
  context.kv = {.kv_format = "f16", .tenant = "acme", .admin = false};
  GenerationRequest a;
  EXPECT_EQ(parse_chat(chat({{"kv", {{"tenant", "other"}}}}), context, a)->status, 403);
  GenerationRequest b;
  ASSERT_FALSE(parse_chat(chat(), context, b));
  EXPECT_EQ(b.kv.policy.tenant, "acme");
}

TEST(OpenAiParse, ExplicitCachingWithoutAMarkReadsAndWritesNothing) {
  const GenerationRequest a = good(chat({{"prompt_cache_options", {{"mode", "explicit"}}}}));
  EXPECT_FALSE(a.kv.policy.reuse);
  EXPECT_EQ(a.kv.policy.write, KvWrite::none);
  EXPECT_TRUE(good(chat({{"prompt_cache_options", {{"mode", "implicit"}, {"ttl", "30m"}}},
                         {"prompt_cache_key", "k"},
                         {"prompt_cache_retention", "in_memory"}}))
                  .kv.policy.reuse);
}

TEST(OpenAiParse, PrioritiesHaveOneDirection) {
  EXPECT_EQ(good(chat({{"priority", 5}})).priority, -5);
  EXPECT_EQ(good(chat({{"kv", {{"priority", 5}}}})).priority, 5);
  EXPECT_EQ(good(chat({{"service_tier", "flex"}})).priority, -10);
}

TEST(OpenAiParse, PromptsOfAllForms) {
  const auto body = [](const char* prompt) {
    return Json::parse(std::string(R"({"model": "m", "prompt": )") + prompt + "}");
  };
  const auto prompts = [&](const char* prompt) {
    GenerationRequest a;
    const auto error = parse_completion(body(prompt), kContext, a);
    EXPECT_FALSE(error) << prompt << ": " << error->message;
    return a.prompts;
  };
  EXPECT_EQ(prompts(R"("x")").at(0).text, "x");
  EXPECT_EQ(prompts(R"(["x", "y"])").at(1).text, "y");
  EXPECT_EQ(prompts("[1, 2]").at(0).tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(prompts("[[1, 2], [3]]").at(1).tokens, (std::vector<TokenId>{3}));
  for (const char* wrong : {"5", "[]", R"([1, "x"])", R"(["x", 1])", R"([[1], "x"])", "[1000]",
                            "[-1]", "[[1], []]", "null", "{}", "[true]"})
    EXPECT_TRUE(bad(body(wrong), true).starts_with("prompt 400")) << wrong;
}

TEST(OpenAiParse, CompletionRules) {
  const auto body = [](Json more) {
    Json b{{"model", "m"}, {"prompt", "x"}};
    b.update(more);
    return b;
  };
  GenerationRequest a;
  ASSERT_FALSE(
      parse_completion(body({{"echo", true}, {"logprobs", 1}, {"max_tokens", 0}}), kContext, a));
  EXPECT_EQ(a.prompt_logprobs, 1);
  EXPECT_EQ(a.tokens_max, 0u);
  GenerationRequest b;
  ASSERT_FALSE(parse_completion(body(Json::object()), kContext, b));
  EXPECT_EQ(b.tokens_max, 16u);
  EXPECT_EQ(bad(body({{"max_tokens", 0}}), true), "max_tokens 400 invalid_value");
  EXPECT_EQ(bad(body({{"best_of", 1}, {"n", 2}}), true), "best_of 400 invalid_value");
  EXPECT_EQ(bad(body({{"logprobs", 21}}), true), "logprobs 400 invalid_value");
}

}  // namespace
}  // namespace quire::openai
