// The same conversation in every dialect becomes the same tokens: tools, a system message, turns, calls
// and their results. Dialects share a cache only because of that.
#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/testing.h"
#include "server/api_error.h"
#include "server/dialect/dialect.h"
#include "server/prompt.h"

namespace quire {
namespace {

struct Called {
  std::string id, name;
  Json arguments, result;
};

struct Turn {
  std::string text;  // of the user, or of the assistant if it calls nothing
  std::vector<Called> calls = {};
};

struct Told {
  std::string system;
  Json tools = Json::array();  // {"name", "description", "parameters"}
  std::vector<Turn> turns;     // the user's first, then the assistant's, and so on
};

class Teller {
 public:
  explicit Teller(std::uint64_t seed) : random_(seed) {}

  Told conversation() {
    Told told;
    if (chance(2)) told.system = text();
    const std::size_t tools = chance(2) ? 1 + below(3) : 0;
    for (std::size_t i = 0; i < tools; ++i)
      told.tools.push_back(
          {{"name", "tool_" + std::to_string(i)},
           {"description", text()},
           {"parameters",
            {{"type", "object"},
             {"properties", {{"x", {{"type", "string"}}}, {"n", {{"type", "integer"}}}}},
             {"required", {"x"}}}}});
    const std::size_t rounds = below(4);
    for (std::size_t i = 0; i < rounds; ++i) {
      told.turns.push_back({text()});
      Turn answer{text()};
      if (tools > 0 && chance(2))
        for (std::size_t c = 1 + below(3); c > 0; --c)
          answer.calls.push_back({"call_" + std::to_string(random_.next()),
                                  "tool_" + std::to_string(below(tools)),
                                  {{"x", text()}, {"n", below(100)}},
                                  {{"result", text()}}});
      told.turns.push_back(std::move(answer));
    }
    told.turns.push_back({text()});
    return told;
  }

 private:
  std::size_t below(std::size_t n) { return random_.next() % n; }
  bool chance(std::size_t n) { return below(n) == 0; }
  std::string text() {
    static constexpr std::string_view kWords[] = {
        "rain", " in", " Paris", "\n", "\"", "{", "ä", "🙂", "<|user|>", " ", "</s>", "\\", "7"};
    std::string out = "t";
    for (std::size_t n = below(12); n > 0; --n) out += kWords[below(std::size(kWords))];
    return out + "t";
  }

  Random random_;
};

Json functions(const Told& told) {
  Json out = Json::array();
  for (const Json& tool : told.tools) out.push_back({{"type", "function"}, {"function", tool}});
  return out;
}

// OpenAI's chat, and Ollama's, which has objects for arguments and names instead of ids.
Json as_chat(const Told& told, bool ollama) {
  Json messages = Json::array();
  if (!told.system.empty()) messages.push_back({{"role", "system"}, {"content", told.system}});
  for (std::size_t i = 0; i < told.turns.size(); ++i) {
    const Turn& turn = told.turns[i];
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", turn.text}});
    if (turn.calls.empty()) continue;
    Json calls = Json::array();
    for (const Called& c : turn.calls) {
      Json call{
          {"type", "function"},
          {"function",
           {{"name", c.name}, {"arguments", ollama ? c.arguments : Json(dump(c.arguments))}}}};
      if (!ollama) call["id"] = c.id;
      calls.push_back(std::move(call));
    }
    messages.back()["tool_calls"] = std::move(calls);
    for (const Called& c : turn.calls) {
      messages.push_back({{"role", "tool"}, {"content", dump(c.result)}});
      messages.back()[ollama ? "tool_name" : "tool_call_id"] = ollama ? c.name : c.id;
    }
  }
  Json body{{"model", "m"}, {"messages", std::move(messages)}};
  if (!told.tools.empty()) body["tools"] = functions(told);
  return body;
}

Json as_openai(const Told& told) { return as_chat(told, false); }
Json as_ollama(const Told& told) { return as_chat(told, true); }

Json as_anthropic(const Told& told) {
  Json messages = Json::array();
  for (std::size_t i = 0; i < told.turns.size(); ++i) {
    const Turn& turn = told.turns[i];
    Json blocks = Json::array({{{"type", "text"}, {"text", turn.text}}});
    Json results = Json::array();
    for (const Called& c : turn.calls) {
      blocks.push_back(
          {{"type", "tool_use"}, {"id", c.id}, {"name", c.name}, {"input", c.arguments}});
      results.push_back(
          {{"type", "tool_result"}, {"tool_use_id", c.id}, {"content", dump(c.result)}});
    }
    messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::move(blocks)}});
    if (!results.empty()) messages.push_back({{"role", "user"}, {"content", std::move(results)}});
  }
  Json body{{"model", "m"}, {"max_tokens", 8}, {"messages", std::move(messages)}};
  if (!told.system.empty()) body["system"] = told.system;
  if (!told.tools.empty()) {
    body["tools"] = Json::array();
    for (const Json& tool : told.tools)
      body["tools"].push_back({{"name", tool["name"]},
                               {"description", tool["description"]},
                               {"input_schema", tool["parameters"]}});
  }
  return body;
}

Json as_gemini(const Told& told) {
  Json contents = Json::array();
  for (std::size_t i = 0; i < told.turns.size(); ++i) {
    const Turn& turn = told.turns[i];
    Json parts = Json::array({{{"text", turn.text}}}), results = Json::array();
    for (const Called& c : turn.calls) {
      parts.push_back({{"functionCall", {{"name", c.name}, {"args", c.arguments}}}});
      results.push_back({{"functionResponse", {{"name", c.name}, {"response", c.result}}}});
    }
    contents.push_back({{"role", i % 2 == 0 ? "user" : "model"}, {"parts", std::move(parts)}});
    if (!results.empty()) contents.push_back({{"role", "user"}, {"parts", std::move(results)}});
  }
  Json body{{"model", "m"}, {"contents", std::move(contents)}};
  if (!told.system.empty())
    body["systemInstruction"] = {{"parts", Json::array({{{"text", told.system}}})}};
  if (!told.tools.empty()) body["tools"] = Json::array({{{"functionDeclarations", told.tools}}});
  return body;
}

Json as_responses(const Told& told) {
  Json input = Json::array();
  for (std::size_t i = 0; i < told.turns.size(); ++i) {
    const Turn& turn = told.turns[i];
    input.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", turn.text}});
    for (const Called& c : turn.calls)
      input.push_back({{"type", "function_call"},
                       {"call_id", c.id},
                       {"name", c.name},
                       {"arguments", dump(c.arguments)}});
    for (const Called& c : turn.calls)
      input.push_back(
          {{"type", "function_call_output"}, {"call_id", c.id}, {"output", dump(c.result)}});
  }
  Json body{{"model", "m"}, {"input", std::move(input)}};
  if (!told.system.empty()) body["instructions"] = told.system;
  if (!told.tools.empty()) {
    body["tools"] = Json::array();
    for (const Json& tool : told.tools)
      body["tools"].push_back({{"type", "function"},
                               {"name", tool["name"]},
                               {"description", tool["description"]},
                               {"parameters", tool["parameters"]}});
  }
  return body;
}

constexpr struct {
  std::string_view dialect;
  Json (*body)(const Told&);
} kTongues[] = {{"openai", as_openai},
                {"anthropic", as_anthropic},
                {"gemini", as_gemini},
                {"responses", as_responses},
                {"ollama", as_ollama}};

// Shows all that a template may show of a message.
constexpr const char* kShowsAll =
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<|user|>{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endif %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }} {{ m.name }}){% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

TEST(Dialects, TheSameConversationIsTheSameTokens) {
  TinyRuntime runtime({.context = 16384});
  std::size_t compared = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Told told = Teller(seed).conversation();
    std::vector<TokenId> first;
    for (const auto& tongue : kTongues) {
      const Dialect* dialect = find_dialect(tongue.dialect);
      if (dialect == nullptr) continue;
      const Json body = tongue.body(told);
      GenerationRequest asked;
      const auto refused =
          dialect->parse(body, {.vocabulary = kTinyVocabulary, .model = "m"}, asked);
      ASSERT_FALSE(refused) << tongue.dialect << ": " << refused->message << "\n" << dump(body);
      asked.chat_template = kShowsAll;
      std::vector<Prompt> prompts;
      const auto failed = make_prompts(asked, *runtime, prompts);
      ASSERT_FALSE(failed) << tongue.dialect << ": " << failed->message << "\n" << dump(body);
      ASSERT_EQ(prompts.size(), 1u);
      if (first.empty()) first = prompts[0].tokens;
      ASSERT_EQ(runtime->tokenizer().decode(prompts[0].tokens), runtime->tokenizer().decode(first))
          << tongue.dialect << ", seed " << seed << "\n"
          << dump(body);
      ASSERT_EQ(prompts[0].tokens, first) << tongue.dialect << ", seed " << seed;
      ++compared;
    }
  }
  EXPECT_GE(compared, 500u);
}

}  // namespace
}  // namespace quire
