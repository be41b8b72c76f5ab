#include "server/prompt_parts.h"

#include <gtest/gtest.h>

#include "engine/chat.h"
#include "text/tiny_vocab.h"

namespace quire {
namespace {

// Shows tools after the system prompt, as several models do, and calls after a message's text.
constexpr std::string_view kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}"
    "{% if m.role == 'system' and tools %}<tools>{% for t in tools %}{{ t.function.name }};"
    "{% endfor %}</tools>{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}"
    "|{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

class PromptParts : public ::testing::Test {
 protected:
  Prompt prompt_of(const GenerationRequest& asked, std::string_view source = kTemplate) {
    const ChatTemplate chat = std::move(ChatTemplate::parse(std::string(source)).value());
    Json context{{"messages", asked.messages}, {"add_generation_prompt", true}};
    if (!asked.tools.is_null()) context["tools"] = asked.tools;
    RenderedConversation c{asked.messages, std::move(chat.render_segments(context).value())};
    Prompt p;
    p.tokens = encode_segments(tokenizer_, c.parts);
    name_parts(asked, c, tokenizer_, p);
    return p;
  }
  std::string text(const Prompt& p, std::uint32_t begin, std::uint32_t end) {
    return tokenizer_.decode(std::span(p.tokens).subspan(begin, end - begin),
                             {.skip_special = false});
  }
  std::vector<std::string> segments(const Prompt& p) {
    std::vector<std::string> out;
    for (const PromptSegment& s : p.segments) out.push_back(s.name + "=" + text(p, s.begin, s.end));
    return out;
  }

  Tokenizer tokenizer_ = std::move(Tokenizer::create(tiny_byte_level()).value());
};

GenerationRequest conversation() {
  GenerationRequest a;
  a.messages = {
      {{"role", "system"}, {"content", "1 2"}},
      {{"role", "user"}, {"content", "3 4\n5 6"}},
      {{"role", "assistant"}, {"content", "7"}, {"tool_calls", {{{"function", {{"name", "8"}}}}}}},
      {{"role", "user"}, {"content", "9"}}};
  a.tools = {{{"function", {{"name", "11"}}}}, {{"function", {{"name", "12"}}}}};
  return a;
}

TEST_F(PromptParts, SegmentsAreWhatTheClientSent) {
  EXPECT_EQ(
      segments(prompt_of(conversation())),
      (std::vector<std::string>{
          "system[0]=[system]1 2", "tools=<tools>11;12", "messages[1]=;</tools>|[user]3 4\n5 6",
          "messages[2]=|[assistant]7<call>8", "messages[3]=</call>|[user]9|[assistant]"}));
}

TEST_F(PromptParts, PartsOfTheClientsHaveItsNames) {
  GenerationRequest a = conversation();
  a.parts = {{"tools", ConversationPart::kTools},
             {"system[0]", 0, 3},
             {"messages[0].content[0]", 1, 3},
             {"messages[0].content[1]", 1, 7},
             {"messages[1].content[0]", 2, 1},
             {"messages[1].content[1]", 2, ConversationPart::kWhole},
             {"messages[2]", 3, 1}};
  EXPECT_EQ(segments(prompt_of(a)),
            (std::vector<std::string>{
                "system[0]=[system]1 2", "tools=<tools>11;12",
                "messages[0].content[0]=;</tools>|[user]3 4", "messages[0].content[1]=\n5 6",
                "messages[1].content[0]=|[assistant]7", "messages[1].content[1]=<call>8",
                "messages[2]=</call>|[user]9|[assistant]"}));
}

TEST_F(PromptParts, ABreakpointCoversAllThatCameBeforeIt) {
  GenerationRequest a = conversation();
  a.breakpoints = {{ConversationPart::kTools, ConversationPart::kWhole, 60},
                   {0, 3, 50},  // the template shows it before the tools
                   {1, 3, 40},
                   {2, ConversationPart::kWhole, 30}};
  const Prompt p = prompt_of(a);
  std::vector<std::string> kept;
  for (const Prompt::Breakpoint& b : p.breakpoints) kept.push_back(text(p, 0, b.tokens));
  EXPECT_EQ(kept, (std::vector<std::string>{
                      "[system]1 2<tools>11;12", "[system]1 2<tools>11;12",
                      "[system]1 2<tools>11;12;</tools>|[user]3 4",
                      "[system]1 2<tools>11;12;</tools>|[user]3 4\n5 6|[assistant]7<call>8"}));
  EXPECT_EQ(p.breakpoints[1].ttl, 50);
  a.kv.breakpoint_tokens_min = p.breakpoints[2].tokens;
  EXPECT_EQ(prompt_of(a).breakpoints.size(), 2u);
}

TEST_F(PromptParts, BlanksThatATemplateRemovesMoveABreakpointLittle) {
  GenerationRequest a;
  a.messages = {{{"role", "user"}, {"content", "  12\n345\n"}}};
  a.breakpoints = {{0, 4, 1}};  // after 12
  const Prompt p = prompt_of(a);
  ASSERT_EQ(p.breakpoints.size(), 1u);
  const std::string kept = text(p, 0, p.breakpoints[0].tokens);
  EXPECT_TRUE(kept.starts_with("[user]1") && kept.size() <= 8) << kept;
}

TEST_F(PromptParts, AVeryLongConversationHasBoundedSegments) {
  GenerationRequest a;
  for (int i = 0; i < 3000; ++i) a.messages.push_back({{"role", "user"}, {"content", "1"}});
  const Prompt p = prompt_of(a);
  EXPECT_LE(p.segments.size(), 512u);
  EXPECT_GT(p.segments.size(), 400u);
  EXPECT_EQ(p.segments.front().begin, 0u);
  for (std::size_t i = 1; i < p.segments.size(); ++i)
    EXPECT_EQ(p.segments[i].begin, p.segments[i - 1].end);
  EXPECT_EQ(p.segments.back().end, p.tokens.size());
  EXPECT_EQ(p.segments.back().name, "messages[2999]");
}

}  // namespace
}  // namespace quire
