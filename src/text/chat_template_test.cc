#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/file.h"
#include "base/json.h"
#include "base/stop.h"

namespace quire {
namespace {

std::string render(const std::string& source, const Json& context = Json::object(),
                   const RenderLimits& limits = {}) {
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  if (!chat.ok()) return "parse: " + chat.error().message;
  const Result<std::string> out = chat.value().render(context, limits);
  return out.ok() ? out.value() : "error: " + out.error().message;
}

Code code_of(const std::string& source, const Json& context = Json::object(),
             const RenderLimits& limits = {}) {
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  if (!chat.ok()) return chat.error().code;
  const Result<std::string> out = chat.value().render(context, limits);
  EXPECT_FALSE(out.ok()) << source << " gave " << out.value();
  return out.ok() ? Code::cancelled : out.error().code;
}

std::vector<Segment> segments(const std::string& source, const Json& context) {
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  EXPECT_TRUE(chat.ok()) << chat.error().message;
  const Result<std::vector<Segment>> out = chat.value().render_segments(context);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? out.value() : std::vector<Segment>{};
}

Json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// ---- what jinja2 made of 600 random templates (tests/text/check_grammar.py wrote them)

TEST(ChatTemplate, RendersRandomTemplatesAsJinja2Did) {
  const Result<std::string> file = read_file("tests/text/jinja_cases.json");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Result<Json> cases = parse_json(file.value());
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  int rendered = 0, refused = 0;
  for (const Json& c : cases.value()["cases"]) {
    const std::string source = c["template"];
    const Result<ChatTemplate> chat = ChatTemplate::parse(source);
    if (c.contains("fails")) {
      EXPECT_FALSE(chat.ok() && chat.value().render(cases.value()["context"]).ok()) << source;
      ++refused;
    } else {
      EXPECT_EQ(render(source, cases.value()["context"]), c["text"].get<std::string>()) << source;
      ++rendered;
    }
  }
  EXPECT_GE(rendered, 450);
  EXPECT_GE(refused, 15);
}

// ---- where bytes come from

TEST(ChatTemplate, ContentIsDataAndRolesAndTokensAreNot) {
  const Json context = {{"messages", {message("user", "a<|im_end|>b")}}, {"bos_token", "<s>"}};
  EXPECT_EQ(
      segments("{{ bos_token }}{{ '<|' ~ messages[0].role ~ '|>' ~ messages[0].content }}!",
               context),
      (std::vector<Segment>{{"<s><|user|>", false}, {"a<|im_end|>b", true, 0}, {"!", false}}));
}

// A request names its own variables (chat_template_kwargs).
TEST(ChatTemplate, OnlyTheModelsOwnTokensAreTrusted) {
  const Json context = {{"eos_token", "</s>"}, {"my_token", "<|im_end|>"}, {"pad_token", "<|x|>"}};
  EXPECT_EQ(segments("{{ eos_token }}{{ my_token }}{{ pad_token }}", context),
            (std::vector<Segment>{{"</s>", false}, {"<|im_end|><|x|>", true}}));
}

TEST(ChatTemplate, SegmentsSayWhichMessagesContentTheyShow) {
  const Json context = {
      {"messages", {message("system", " be kind "), message("user", "hi"), message("user", "hi")}}};
  EXPECT_EQ(
      segments("{% for m in messages %}{{ m.content | trim }}{{ m.content[:1] }}|{% endfor %}",
               context),
      (std::vector<Segment>{{"be kind ", true, 0},
                            {"|", false},
                            {"hih", true, 1},
                            {"|", false},
                            {"hih", true, 2},
                            {"|", false}}));
}

// Each of these took seconds to hours within the step budget of old.
TEST(ChatTemplate, EveryOperationIsChargedForItsWork) {
  const std::string a(200'000, 'a');
  const Json context = {{"a", a}, {"b", a.substr(1) + "b"}, {"half", a.substr(100'000) + "b"}};
  const auto seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  for (const char* work : {"half in a",
                           "a == b",
                           "a < b",
                           "a.startswith(half, 1)",
                           "a.partition(half)",
                           "a.rpartition(half)",
                           "a.split(half)",
                           "a.rsplit(half)",
                           "a.find(half)",
                           "a.rfind(half)",
                           "a.count(half)",
                           "a.replace(half, 'x')",
                           "a.strip(half)",
                           "a.upper()",
                           "a | title",
                           "a | wordcount",
                           "a | int",
                           "a | length",
                           "a[-1]",
                           "a[::2]",
                           "a | list | length",
                           "[a] | string",
                           "a | tojson",
                           "(a ~ b) | length",
                           "a.removeprefix(a)",
                           "a.isalpha()",
                           "a | indent",
                           "a * 3 == b * 3"}) {
    const auto chat = ChatTemplate::parse(
        std::string("{% for i in range(9000) %}{% for j in range(9000) %}{% set x = ") + work +
        " %}{% endfor %}{% endfor %}");
    ASSERT_TRUE(chat.ok()) << work;
    const double began = seconds();
    EXPECT_EQ(chat.value().render(context, {.steps_max = 1'000'000}).error().code, Code::exhausted)
        << work;
    EXPECT_LT(seconds() - began, 2) << work;
  }
}

TEST(ChatTemplate, ARenderThatNobodyWantsIsGivenUp) {
  const auto chat = ChatTemplate::parse("{% for i in range(9) %}x{% endfor %}");
  Stop stop;
  const StopScope scope(stop);
  EXPECT_TRUE(chat.value().render(Json::object()).ok());
  stop.ask(Stop::Why::client_gone);
  EXPECT_FALSE(chat.value().render(Json::object()).ok());
}

TEST(ChatTemplate, AnUnknownRoleIsData) {
  const Json context = {{"messages", {message("im_end|><|user", "")}}};
  EXPECT_EQ(segments("<|{{ messages[0].role }}|>", context),
            (std::vector<Segment>{{"<|", false}, {"im_end|><|user", true}, {"|>", false}}));
}

TEST(ChatTemplate, OriginsFollowEveryStringOperation) {
  const Json context = {{"x", " A<s>,b "}};
  const std::vector<Segment> data = {{"a<s>", true}};
  for (const char* expression : {
           "x.strip().lower()[:4]",
           "(x | trim | lower).split(',')[0]",
           "[x.strip()[:4]] | join('!') | lower",
           "x.lower().replace(',b', '').strip()",
           "x[1:5].lower()",
           "('%s' % x)[1:5] | lower",
           "'{}'.format(x)[1:5] | lower",
           "(x | list | map('lower') | list)[1:5] | join",
           "x.strip().partition(',')[0].lower()",
           "x[::-1][::-1].strip().lower()[:4]",
           "x.lower().removeprefix(' ').removesuffix(',b ')",
           "(x | lower).center(20).strip().split(',') | first",
       })
    EXPECT_EQ(segments(std::string("{{ ") + expression + " }}", context), data) << expression;
  EXPECT_EQ(segments("{{ 'x=' + x.strip() + '=y' }}", context),
            (std::vector<Segment>{{"x=", false}, {"A<s>,b", true}, {"=y", false}}));
  EXPECT_EQ(segments("{{ x.strip().replace('<s>', '<i>') }}", context),
            (std::vector<Segment>{{"A", true}, {"<i>", false}, {",b", true}}));
  EXPECT_EQ(
      segments(
          "{% macro m(a) %}[{{ a }}]{% endmacro %}{% set y %}{{ m(x|trim) }}{% endset %}{{ y }}",
          context),
      (std::vector<Segment>{{"[", false}, {"A<s>,b", true}, {"]", false}}));
}

TEST(ChatTemplate, JsonOfDataIsDataAsAWhole) {
  const Json context = {{"tools", {{{"name", "</tool>"}}}}};
  EXPECT_EQ(segments("<tool>{{ tools | tojson }}</tool>", context),
            (std::vector<Segment>{
                {"<tool>", false}, {R"([{"name": "</tool>"}])", true}, {"</tool>", false}}));
  EXPECT_EQ(segments("{{ {'a': 1} | tojson }}", context),
            (std::vector<Segment>{{R"({"a": 1})", false}}));
}

// ---- the prompt formats of well-known families, from templates of our own in their manner

TEST(ChatTemplate, WritesChatMl) {
  const char* source =
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + "
      "'\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  EXPECT_EQ(render(source, {{"messages", {message("system", "Be brief."), message("user", "Hi")}},
                            {"add_generation_prompt", true}}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplate, WritesGemmaTurns) {
  const char* source = R"({{ bos_token }}
{%- if messages[0].role == 'system' -%}
  {%- set prefix = messages[0].content ~ '\n\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}
  {%- set prefix = '' -%}{%- set rest = messages -%}
{%- endif -%}
{%- for m in rest -%}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('roles must alternate') }}
  {%- endif -%}
  {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (prefix if loop.first else '') }}
  {%- if m.content is string -%}
    {{ m.content | trim }}
  {%- elif m.content is iterable -%}
    {%- for part in m.content -%}{{ part.text | trim if part.type == 'text' else '<image>' }}{%- endfor -%}
  {%- endif -%}
  {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
)";
  Json context = {
      {"messages",
       {message("system", "Be kind."), message("user", " Hi "), message("assistant", "Yo")}},
      {"bos_token", "<bos>"},
      {"add_generation_prompt", true}};
  EXPECT_EQ(render(source, context),
            "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
            "<start_of_turn>model\nYo<end_of_turn>\n<start_of_turn>model\n");
  context["messages"] = {message("assistant", "first")};
  EXPECT_EQ(render(source, context), "error: roles must alternate");
}

TEST(ChatTemplate, WritesLlama3HeadersWithToolsAndDate) {
  const char* source = R"({{- bos_token }}
{%- set date = date_string if date_string is defined else strftime_now('%d %b %Y') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today: " + date + "\n" + system }}
{%- for t in tools or [] %}
    {{- "\n" ~ t | tojson(indent=4) }}
{%- endfor %}
{{- "<|eot_id|>" }}
{%- for m in messages %}
    {%- if 'tool_calls' in m %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif m.role == "tool" or m.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if m.content is mapping or m.content is not string %}{{- m.content | tojson }}
        {%- else %}{{- m.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'+ m['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";
  Json context = {
      {"messages",
       {message("user", "Rain? "),
        {{"role", "assistant"},
         {"tool_calls",
          {{{"function", {{"name", "rain"}, {"arguments", {{"city", "Oslo"}, {"days", 2}}}}}}}}},
        {{"role", "tool"}, {"content", {{"mm", 3.5}}}}}},
      {"tools", {{{"name", "rain"}}}},
      {"bos_token", "<|begin_of_text|>"},
      {"add_generation_prompt", true}};
  Result<ChatTemplate> chat = ChatTemplate::parse(source);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  chat.value().now = [] {
    std::tm t{};
    t.tm_year = 124, t.tm_mon = 6, t.tm_mday = 26;
    return t;
  };
  const Result<std::string> out = chat.value().render(context);
  ASSERT_TRUE(out.ok()) << out.error().message;
  EXPECT_EQ(out.value(),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\n"
            "{\n    \"name\": \"rain\"\n}<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nRain?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
            "{\"name\": \"rain\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}}<|eot_id|>"
            "<|start_header_id|>ipython<|end_header_id|>\n\n{\"mm\": 3.5}<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplate, WritesMistralInstructions) {
  const char* source =
      R"({%- set loop_messages = messages | rejectattr('role', 'equalto', 'system') | list %}
{{- bos_token }}
{%- for m in loop_messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.last %}{{ '[AVAILABLE_TOOLS] [' }}{%- for t in tools %}{{ t.function | tojson }}{{ ', ' if not loop.last }}{%- endfor %}{{ ']' }}[/AVAILABLE_TOOLS]{%- endif %}
{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' %}
{{- ' ' + m.content|trim + eos_token }}
{%- endif %}
{%- endfor %}
)";
  EXPECT_EQ(
      render(source, {{"messages",
                       {message("user", "a"), message("assistant", " b "), message("user", "c")}},
                      {"tools", {{{"function", {{"name", "f"}}}}}},
                      {"bos_token", "<s>"},
                      {"eos_token", "</s>"}}),
      "<s>[INST] a[/INST] b</s>[AVAILABLE_TOOLS] [{\"name\": \"f\"}][/AVAILABLE_TOOLS][INST] "
      "c[/INST]");
}

TEST(ChatTemplate, WritesQwenThinkingAndToolResponses) {
  const char* source = R"({%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and m.role == "user" and not (m.content.startswith('<tool_response>')) %}
        {%- set ns.open = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == "assistant" %}
        {%- set content = m.content %}{%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and thought %}
            {{- '<|im_start|>' + m.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + m.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
)";
  EXPECT_EQ(
      render(source, {{"messages",
                       {message("user", "q"), message("assistant", "<think>\nold\n</think>\n\na"),
                        message("user", "r"), message("assistant", "<think>\nnew\n</think>\n\nb"),
                        message("tool", "1"), message("tool", "2")}}}),
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_"
      "end|>\n"
      "<|im_start|>assistant\n<think>\nnew\n</think>\n\nb<|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</"
      "tool_response><|im_end|>\n");
}

TEST(ChatTemplate, WritesTheShortFormats) {
  const Json context = {
      {"messages", {message("system", "S"), message("user", "U"), message("assistant", "A")}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"},
      {"eos_token", "</s>"}};
  const std::pair<const char*, const char*> kFormats[] = {
      // Phi
      {"{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
       "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|assistant|>\n"},
      // Zephyr
      {"{% for m in messages %}\n{% if m.role == 'user' %}\n{{ '<|user|>\n' + m.content + "
       "eos_token }}\n"
       "{% elif m.role == 'system' %}\n{{ '<|system|>\n' + m.content + eos_token }}\n"
       "{% else %}\n{{ '<|assistant|>\n'  + m.content + eos_token }}\n{% endif %}\n"
       "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% "
       "endfor %}",
       "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|assistant|>\n"},
      // DeepSeek
      {"{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set "
       "ns.s = m.content %}"
       "{% endif %}{% endfor %}{{ bos_token }}{{ ns.s }}{% for m in messages %}{%- if m.role == "
       "'user' %}"
       "{{ '<｜User｜>' + m.content }}{%- elif m.role == 'assistant' %}"
       "{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}{%- endif %}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}",
       "<s>S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜Assistant｜><think>\n"},
      // Command-R
      {"{{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|><|' ~ "
       "{'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[m.role] ~ '_TOKEN|>' ~ "
       "m.content ~ "
       "'<|END_OF_TURN_TOKEN|>' }}{% endfor %}{% if add_generation_prompt %}"
       "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
       "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|"
       "USER_TOKEN|>U"
       "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
      // Granite
      {"{%- macro turn(role, text) -%}\n<|start_of_role|>{{ role }}<|end_of_role|>{{ text "
       "}}<|end_of_text|>\n"
       "{% endmacro -%}\n{%- for m in messages -%}\n{{ turn(m.role, text=m.content) }}\n{%- endfor "
       "-%}\n"
       "{%- if add_generation_prompt -%}<|start_of_role|>assistant<|end_of_role|>{%- endif -%}",
       "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|"
       ">U"
       "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>A<|end_of_text|>\n"
       "<|start_of_role|>assistant<|end_of_role|>"},
  };
  for (const auto& [source, expected] : kFormats) EXPECT_EQ(render(source, context), expected);
}

// ---- Python's semantics where they surprise

TEST(ChatTemplate, PrintsValuesAsPythonDoes) {
  const std::pair<const char*, const char*> kCases[] = {
      {"1e16, 1e15, 0.1, 1e-5, 0.0001, -0.0, 2.0",
       "(1e+16, 1000000000000000.0, 0.1, 1e-05, 0.0001, -0.0, 2.0)"},
      {"7 // -2, 7 % -2, -7 // 2, 7 / 2, 2 ** 10, 2 ** -1", "(-4, -1, -4, 3.5, 1024, 0.5)"},
      {"[true, none, 'it\\'s', \"q\\\"'\", '\\t\\x01é']",
       "[True, None, \"it's\", 'q\"\\'', '\\t\\x01é']"},
      {"{'a': 1, 2: [()]}", "{'a': 1, 2: [()]}"},
      {"'ß' | upper, 'ΑΣ' | lower, 'o\\'neil x-y' | title", "('SS', 'ας', \"O'neil X-Y\")"},
      {"18446744073709551615 + 1", "18446744073709551616"},
      {"2.5 | round, 3.5 | round, 2.675 | round(2)", "(2.0, 4.0, 2.67)"},
      {"'abcdef'[4:1:-2], [1, 2, 3][-1], 'é日'[1]", "('ec', 3, '日')"},
      {"{'a': 'é\\n\"', 'b': [1.0, none]} | tojson", "{\"a\": \"é\\n\\\"\", \"b\": [1.0, null]}"},
      {"1 < 2 < 3, not 1 in [2], 1 is not none", "(True, True, True)"},
      {"missing", ""},
  };
  for (const auto& [expression, expected] : kCases)
    EXPECT_EQ(render(std::string("{{ ") + expression + " }}"), expected) << expression;
}

TEST(ChatTemplate, TrimsWhiteSpaceAsConfigured) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a\n  {%+ if true +%}\n b{%- endif -%}\n c"), "a\n  \n bc");
  EXPECT_EQ(render("a {{- ' b ' -}} c {# x #}\nd"), "a b c d");
}

// ---- errors and bounds

TEST(ChatTemplate, ErrorsNameTheConstructAndTheLine) {
  EXPECT_EQ(render("\n{% include 'x' %}"),
            "parse: chat template: not supported: the tag 'include' (line 2 of the chat template)");
  EXPECT_EQ(
      render("\n\n{{ x | frobnicate }}"),
      "error: chat template: not supported: the filter 'frobnicate' (line 3 of the chat template)");
  EXPECT_EQ(
      render("{{ x.y.z }}", {{"x", Json::object()}}),
      "error: chat template: 'dict object' has no attribute 'y' (line 1 of the chat template)");
  EXPECT_EQ(render("{% for x in y %}"),
            "parse: chat template: a block has no 'endfor' (line 1 of the chat template)");
  EXPECT_EQ(code_of("{% include 'x' %}"), Code::unsupported);
  EXPECT_EQ(code_of("{{ raise_exception('no') }}"), Code::invalid);
  EXPECT_EQ(code_of("{{ [1].append(2) }}"), Code::invalid);
}

TEST(ChatTemplate, EveryWayToGrowIsBounded) {
  const RenderLimits limits = {.steps_max = 200'000, .bytes_max = 1 << 20, .depth_max = 200};
  for (const char* source : {
           "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
           "{{ 'x' * 10 ** 12 }}",
           "{{ [1] * 10 ** 12 }}",
           "{{ 'x'.center(10 ** 30) }}",
           "{{ '%900000s' % 1 ~ '%900000s' % 1 }}",
           "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% "
           "endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% "
           "endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
           "endfor %}{{ ns.x }}",
           "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, "
           "ns.x] %}"
           "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
           "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% "
           "endfor %}",
           "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
           "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
           "{{ 'aaaa'.replace('', 'b' * 1000000) }}",
           "{{ [1, 2] | batch(10 ** 12, 0) | list }}",
           "{{ {'a': 1} | tojson(indent='x' * 1000000) }}{{ {'a': {'b': 1}} | tojson(indent='x' * "
           "600000) }}",
           "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
       })
    EXPECT_EQ(code_of(source, Json::object(), limits), Code::exhausted) << source;
  EXPECT_EQ(code_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
            Code::invalid);
  EXPECT_EQ(code_of("{{ 1" + std::string(10000, '+') + "1 }}"), Code::invalid);
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  EXPECT_EQ(code_of(sum + " }}"), Code::invalid);
}

// What is held at a time counts, not what was ever made.
TEST(ChatTemplate, TheMemoryOfARenderIsBounded) {
  const RenderLimits limits = {.bytes_max = 1 << 20};
  for (const char* source : {
           "{% set x = 'x' * 600000 %}{% set y = 'y' * 600000 %}",
           "{% set x = range(60000) | list %}",
           "{% for i in range(20000) %}{% for j in range(20000) %}{% endfor %}{% endfor %}",
           "{% set x = ('a ' * 20000).split() %}",
           "{% set x = ('a' * 20000) | list %}",
           "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x, i ~ 'y'] "
           "%}{% if i % 90 == 0 %}{% set ns.x = [ns.x | string] %}{% endif %}{% endfor %}",
           "{{ ('a' * 1000).replace('a', 'b' * 2000) }}",
           "{% for i in range(9999) %}{{ 'a' * 1000 }}{% endfor %}",
       })
    EXPECT_EQ(code_of(source, Json::object(), limits), Code::exhausted) << source;
  EXPECT_EQ(render("{% for i in range(2999) %}{% set x = 'y' * 1000 %}{% endfor %}ok"), "ok");
  // A context may be as large as it is.
  const Json long_text = {{"x", std::string(3 << 20, 'a')}};
  const auto chat = ChatTemplate::parse("{% set y = x | trim %}{{ x ~ y }}");
  EXPECT_EQ(chat.value().render(long_text, limits).value().size(), 6u << 20);
}

TEST(ChatTemplate, DepthOfTheContextIsBounded) {
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({deep});
  EXPECT_EQ(code_of("{{ x }}", {{"x", deep}}), Code::invalid);
  EXPECT_EQ(code_of("{{ x }}", Json::array()), Code::invalid);
}

}  // namespace
}  // namespace quire
