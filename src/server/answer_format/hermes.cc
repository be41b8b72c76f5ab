// server/answer_format/hermes.cc - Hermes, Qwen 2.5 and 3, Granite 4, and what this server teaches models
// whose template knows no tools: <tool_call>{"name": "f", "arguments": {...}}</tool_call>. Format: Hermes'
// model cards and the chat template of Qwen2.5. Objects without tags are calls, too.
#include "server/answer_format/answer_format.h"
#include "server/answer_format/marked_calls.h"

namespace quire {
namespace {

constexpr std::string_view kHermesBegin[] = {"<tool_call>"}, kHermesClose[] = {"</tool_call>"},
                           kHermesMarks[] = {"<tool_call>", "</tool_call>"},
                           kHermesAliases[] = {"qwen", "qwen2_5", "granite4"};

std::unique_ptr<CallReader> read_bare(const Json&) { return read_marked_calls({.bare = true}); }

ToolCallForm bare_form() {
  return {.open = "{\"name\": \"",
          .middle = "\", \"arguments\": ",
          .close = "}",
          .between = "",
          .trigger = "",
          .parallel = false};
}

constexpr CallFormat kBareCalls = {.name = "json", .reader = read_bare, .form = bare_form};

}  // namespace

extern const CallFormat kHermesCalls = {
    .name = "hermes",
    .aliases = kHermesAliases,
    .templates = kHermesBegin,
    .marks = kHermesMarks,
    .reader =
        [](const Json&) {
          return read_marked_calls({.begin = kHermesBegin, .close = kHermesClose, .bare = true});
        },
    .form = [] { return ToolCallForm{}; }};

const CallFormat& bare_calls() { return kBareCalls; }

}  // namespace quire
