#include "server/grammar.h"

#include <algorithm>

namespace quire {
namespace {

bool is_hidden(std::string_view mark, const Tokenizer& tokenizer) {
  const TokenId id = mark.empty() ? kNoToken : tokenizer.find(mark);
  return id != kNoToken && tokenizer.is_special(id);
}

// A grammar writes text and no control tokens, but for one that may stand before it.
bool can_write(const CallFormat& format, const ToolCallForm& form, const Tokenizer& tokenizer) {
  return std::ranges::none_of(format.marks, [&](std::string_view mark) {
    const auto has = [&](const std::string& part) { return part.find(mark) != part.npos; };
    return mark != format.opener && is_hidden(mark, tokenizer) &&
           (has(form.begin) || has(form.open) || has(form.middle) || has(form.close) ||
            has(form.end));
  });
}

// Whether a mask can tell where reasoning begins and ends.
bool has_marks(const ReasoningFormat& reasoning, const Tokenizer& tokenizer) {
  return !reasoning.open.empty() && tokenizer.find(reasoning.open) != kNoToken &&
         tokenizer.find(reasoning.close) != kNoToken;
}

Json callable_tools(const GenerationRequest& asked) {
  Json tools = Json::array();
  const auto& allowed = asked.tool_choice.allowed;
  for (const Json& tool : asked.tools) {
    const Json& f = tool["function"];
    if (!allowed.empty() &&
        std::ranges::find(allowed, f["name"].get<std::string>()) == allowed.end())
      continue;
    tools.push_back({{"name", f["name"]},
                     {"parameters", f.contains("parameters") && f["parameters"].is_object()
                                        ? f["parameters"]
                                        : Json{{"type", "object"}}},
                     {"strict", f.value("strict", Json(false)) == true}});
  }
  return tools;
}

}  // namespace

AnswerGrammar tool_call_grammar(const GenerationRequest& asked, const AnswerFormat& format,
                                const Tokenizer& tokenizer) {
  const bool required = asked.tool_choice.kind == ToolChoice::Kind::required;
  if (asked.tools.is_null() || asked.tool_choice.kind == ToolChoice::Kind::none) return {};
  const CallFormat* calls = format.calls;
  ToolCallForm form;
  if (calls != nullptr && calls->form != nullptr) form = calls->form();
  const bool own = calls != nullptr && calls->form != nullptr && can_write(*calls, form, tokenizer);
  if (!own) {
    calls = &bare_calls();
    form = calls->form();
  }
  // Text with calls in it: only where a mark tells that one begins, and the mask hides nothing else.
  if (!required && (form.trigger.empty() || (format.reasoning != nullptr &&
                                             (is_hidden(format.reasoning->open, tokenizer) ||
                                              is_hidden(format.reasoning->close, tokenizer)))))
    return {};
  AnswerGrammar grammar{.kind = AnswerGrammar::Kind::tool_calls,
                        .schema = callable_tools(asked),
                        .param = "tools",
                        .hint = !required,
                        .bare_calls = !own};
  if (is_hidden(calls->opener, tokenizer)) {
    grammar.opening = {tokenizer.find(calls->opener)};
    form.begin.erase(0, calls->opener.size());
  }
  form.required = required;
  // A function that was named is called once.
  form.parallel &= asked.parallel_tool_calls && asked.tool_choice.allowed.size() != 1;
  grammar.form = std::move(form);
  return grammar;
}

AnswerFormat format_of_answer(const GenerationRequest& asked, AnswerFormat format,
                              const Tokenizer& tokenizer) {
  if (!asked.chat) return {};
  const AnswerGrammar& grammar = asked.grammar;
  // Where another shape was asked for, an object with a name is no call.
  const bool calls =
      grammar.kind == AnswerGrammar::Kind::none || grammar.kind == AnswerGrammar::Kind::tool_calls;
  if (!calls || asked.tools.is_null() || asked.tool_choice.kind == ToolChoice::Kind::none)
    format.calls = nullptr;
  else if (grammar.bare_calls)
    format.calls = &bare_calls();
  if (grammar.kind != AnswerGrammar::Kind::none && !grammar.hint && format.reasoning != nullptr &&
      !has_marks(*format.reasoning, tokenizer))
    format.reasoning = nullptr;
  return format;
}

MaskOpening mask_opening(const AnswerGrammar& grammar, const AnswerFormat& format,
                         std::string_view prompt_end, const Tokenizer& tokenizer) {
  MaskOpening opening{.tokens = grammar.opening, .ends = tokenizer.end_of_generation()};
  if (format.reasoning != nullptr && has_marks(*format.reasoning, tokenizer)) {
    opening.think = tokenizer.find(format.reasoning->open);
    opening.answer = tokenizer.find(format.reasoning->close);
    opening.inside = ends_with_mark(prompt_end, format.reasoning->open);
  }
  return opening;
}

}  // namespace quire
