// server/answer_format/mistral.cc - Mistral: [TOOL_CALLS] and a list of objects (tokenizers up to v7), or
// [TOOL_CALLS]name[ARGS]{...} for each call (v11 and later, [CALL_ID] and [ARGS] where they exist). Format:
// mistral-common's documentation of its tokenizers.
#include <algorithm>

#include "server/answer_format/answer_format.h"
#include "server/answer_format/marked_calls.h"

namespace quire {
namespace {

constexpr std::string_view kMistralBegin[] = {"[TOOL_CALLS]"},
                           kMistralTemplates[] = {"[TOOL_CALLS]"},
                           kMistralMarks[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};

CallHead mistral_head(std::string_view text) {
  constexpr std::string_view kArguments = "[ARGS]", kId = "[CALL_ID]";
  constexpr std::string_view kNameBytes =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  const std::size_t end = text.find_first_not_of(kNameBytes);
  if (end == text.npos) return {};
  if (end == 0) return {CallHead::Found::no};
  const std::string name(text.substr(0, end));
  std::string_view rest = text.substr(end);
  if (rest.starts_with(kId)) {
    const std::size_t arguments = rest.find(kArguments);
    if (arguments == rest.npos) return {};
    rest.remove_prefix(arguments);
  }
  if (rest.starts_with(kArguments))
    rest.remove_prefix(kArguments.size());
  else if (kArguments.starts_with(rest) || kId.starts_with(rest))
    return {};
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
  if (rest.empty()) return {};
  if (rest[0] != '{') return {CallHead::Found::no};
  return {CallHead::Found::yes, text.size() - rest.size(), name};
}

ToolCallForm mistral_form() {
  return {.begin = "[TOOL_CALLS][",
          .open = "{\"name\": \"",
          .middle = "\", \"arguments\": ",
          .close = "}",
          .between = ", ",
          .end = "]",
          .trigger = ""};
}

}  // namespace

extern const CallFormat kMistralCalls = {
    .name = "mistral",
    .templates = kMistralTemplates,
    .marks = kMistralMarks,
    .reader =
        [](const Json&) {
          return read_marked_calls({.begin = kMistralBegin, .head = mistral_head});
        },
    .form = mistral_form,
    .opener = "[TOOL_CALLS]"};

}  // namespace quire
