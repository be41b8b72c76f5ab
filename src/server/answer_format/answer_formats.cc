#include <algorithm>

#include "server/answer_format/answer_format.h"

namespace quire {

extern const CallFormat kHarmonyCalls, kMistralCalls, kDeepSeekCalls, kGemmaCalls, kCommandCalls,
    kQwenXmlCalls, kGraniteCalls, kPhiCalls, kHermesCalls, kLlamaCalls, kPythonicCalls;

namespace {

// The first whose text a template holds wins.
const CallFormat* const kCallFormats[] = {
    &kHarmonyCalls, &kMistralCalls, &kDeepSeekCalls, &kGemmaCalls, &kCommandCalls, &kQwenXmlCalls,
    &kPhiCalls,     &kGraniteCalls, &kHermesCalls,   &kLlamaCalls, &kPythonicCalls};

constexpr std::string_view kThinkAliases[] = {"deepseek_r1", "deepseek_v3", "qwen3", "glm45",
                                              "hunyuan_a13b"};
constexpr std::string_view kThinkTemplates[] = {"</think>"};
constexpr std::string_view kMistralThink[] = {"[THINK]"};
constexpr std::string_view kCommandThink[] = {"<|START_THINKING|>"};
constexpr std::string_view kCommandThinkAliases[] = {"cohere_command"};
constexpr std::string_view kGraniteThink[] = {"Here is my thought process:"};
constexpr std::string_view kGemmaThink[] = {"<|channel>thought"};
constexpr std::string_view kGemmaThinkAliases[] = {"gemma4"};
constexpr std::string_view kHarmonyThink[] = {"<|channel|>analysis"};
constexpr std::string_view kHarmonyThinkAliases[] = {"openai_gptoss", "gpt_oss", "harmony"};

constexpr ReasoningFormat kThink = {"think", kThinkAliases, kThinkTemplates, "<think>", "</think>"};
constexpr ReasoningFormat kBracketThink = {"mistral", {}, kMistralThink, "[THINK]", "[/THINK]"};
constexpr ReasoningFormat kCommandThinking = {"command_r", kCommandThinkAliases, kCommandThink,
                                              "<|START_THINKING|>", "<|END_THINKING|>"};
constexpr ReasoningFormat kGraniteThinking = {
    "granite", {}, kGraniteThink, "Here is my thought process:", "Here is my response:"};
constexpr ReasoningFormat kGemmaThinking = {"gemma", kGemmaThinkAliases, kGemmaThink,
                                            "<|channel>thought", "<channel|>"};
constexpr ReasoningFormat kHarmonyThinking = {"openai", kHarmonyThinkAliases, kHarmonyThink};

const ReasoningFormat* const kReasoningFormats[] = {&kHarmonyThinking, &kBracketThink,
                                                    &kCommandThinking, &kGraniteThinking,
                                                    &kGemmaThinking,   &kThink};

template <class Format>
const Format* by_name(std::span<const Format* const> formats, std::string_view name) {
  for (const Format* f : formats)
    if (f->name == name || std::ranges::find(f->aliases, name) != f->aliases.end()) return f;
  return nullptr;
}

template <class Format>
const Format* by_template(std::span<const Format* const> formats, std::string_view text) {
  for (const Format* f : formats)
    for (const std::string_view part : f->templates)
      if (text.find(part) != text.npos) return f;
  return nullptr;
}

template <class Format>
Status check_parser(std::span<const Format* const> formats, const std::string& name,
                    const char* option) {
  if (name.empty() || name == "auto" || name == "none" || by_name(formats, name) != nullptr)
    return {};
  std::string known;
  for (const Format* f : formats) known += ", " + std::string(f->name);
  return Error{Code::invalid,
               std::string(option) + " '" + name + "' is unknown; there are auto, none" + known};
}

}  // namespace

std::span<const CallFormat* const> call_formats() { return kCallFormats; }
const CallFormat* find_call_format(std::string_view name) { return by_name(call_formats(), name); }
std::span<const ReasoningFormat* const> reasoning_formats() { return kReasoningFormats; }

AnswerFormat answer_format(std::string_view chat_template, const ParserNames& names) {
  AnswerFormat format;
  if (names.calls != "none") {
    format.calls = by_name(call_formats(), names.calls);
    if (format.calls == nullptr) format.calls = by_template(call_formats(), chat_template);
    // A template without tools gets them as text, and that text asks for these tags.
    if (format.calls == nullptr)
      format.calls = chat_template.find("tools") == chat_template.npos            ? &kHermesCalls
                     : chat_template.find("\"parameters\"") != chat_template.npos ? &kLlamaCalls
                                                                                  : &bare_calls();
  }
  if (names.reasoning != "none") {
    format.reasoning = by_name(reasoning_formats(), names.reasoning);
    if (format.reasoning == nullptr)
      format.reasoning = by_template(reasoning_formats(), chat_template);
  }
  return format;
}

Status check_parser_names(const ParserNames& names) {
  if (Status s = check_parser(call_formats(), names.calls, "--tool-call-parser"); !s.ok()) return s;
  return check_parser(reasoning_formats(), names.reasoning, "--reasoning-parser");
}

std::vector<TokenId> visible_tokens(AnswerFormat format, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens;
  const auto show = [&](std::string_view mark) {
    const TokenId id = mark.empty() ? kNoToken : tokenizer.find(mark);
    if (id != kNoToken) tokens.push_back(id);
  };
  if (format.calls != nullptr)
    for (const std::string_view mark : format.calls->marks) show(mark);
  if (format.reasoning != nullptr) {
    show(format.reasoning->open);
    show(format.reasoning->close);
    // Gemma's mark is a token and a word.
    if (format.reasoning == &kGemmaThinking) show("<|channel>");
    if (format.reasoning == &kHarmonyThinking)
      for (const std::string_view mark : kHarmonyCalls.marks) show(mark);
  }
  return tokens;
}

}  // namespace quire
