// server/answer_format/deepseek.cc - DeepSeek V3, R1 and V3.1. V3 and R1 write
// <｜tool▁call▁begin｜>function<｜tool▁sep｜>name and the arguments in a fenced block; V3.1 writes
// <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>. Format: their chat templates and model cards.
#include <algorithm>

#include "server/answer_format/answer_format.h"
#include "server/answer_format/marked_calls.h"

namespace quire {
namespace {

constexpr std::string_view kAllBegin = "<｜tool▁calls▁begin｜>", kAllEnd = "<｜tool▁calls▁end｜>",
                           kOneBegin = "<｜tool▁call▁begin｜>", kOneEnd = "<｜tool▁call▁end｜>",
                           kSeparator = "<｜tool▁sep｜>", kFence = "```";
constexpr std::string_view kDeepSeekBegin[] = {kAllBegin, kOneBegin},
                           kDeepSeekClose[] = {kFence, kOneEnd, kAllEnd},
                           kDeepSeekTemplates[] = {kAllBegin, kOneBegin},
                           kDeepSeekMarks[] = {kAllBegin, kAllEnd, kOneBegin, kOneEnd, kSeparator},
                           kDeepSeekAliases[] = {"deepseek_v3", "deepseek_v31", "deepseek_r1"};

CallHead deepseek_head(std::string_view text) {
  const std::size_t total = text.size();
  if (text.starts_with(kOneBegin))
    text.remove_prefix(kOneBegin.size());
  else if (kOneBegin.starts_with(text))
    return {};
  const std::size_t separator = text.find(kSeparator);
  if (separator == text.npos) return {};
  std::string name(text.substr(0, separator));
  text.remove_prefix(separator + kSeparator.size());
  if (text.empty()) return {};
  if (text[0] != '{') {  // what came first was the kind of tool
    const std::size_t line = text.find('\n');
    if (line == text.npos) return {};
    name = text.substr(0, line);
    text.remove_prefix(line + 1);
    constexpr std::string_view kJsonFence = "```json";
    if (kJsonFence.starts_with(text)) return {};
    if (text.starts_with(kJsonFence)) text.remove_prefix(kJsonFence.size());
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    if (text.empty()) return {};
  }
  if (name.empty() || text[0] != '{') return {CallHead::Found::no};
  return {CallHead::Found::yes, total - text.size(), name};
}

ToolCallForm deepseek_form() {
  return {.begin = std::string(kAllBegin),
          .open = std::string(kOneBegin) + "function" + std::string(kSeparator),
          .middle = "\n```json\n",
          .close = "\n```" + std::string(kOneEnd),
          .between = "\n",
          .end = std::string(kAllEnd),
          .trigger = ""};
}

}  // namespace

extern const CallFormat kDeepSeekCalls = {
    .name = "deepseek",
    .aliases = kDeepSeekAliases,
    .templates = kDeepSeekTemplates,
    .marks = kDeepSeekMarks,
    .reader =
        [](const Json&) {
          return read_marked_calls(
              {.begin = kDeepSeekBegin, .close = kDeepSeekClose, .head = deepseek_head});
        },
    .form = deepseek_form};

}  // namespace quire
