// server/answer_format/call_lists.cc - families that write a mark and a list of objects. Granite 3:
// <|tool_call|>[{"name": ..., "arguments": ...}]. Phi-4-mini: <|tool_call|>[...]<|/tool_call|>, also
// functools[...]. Command R7B and A: <|START_ACTION|>[{"tool_name": ..., "parameters": ...}]<|END_ACTION|>;
// older Command-R models: Action: and a fenced block. Formats: their model cards and chat templates, and
// docs.cohere.com ("Prompting Command").
#include "server/answer_format/answer_format.h"
#include "server/answer_format/marked_calls.h"

namespace quire {
namespace {

constexpr std::string_view kGraniteBegin[] = {"<|tool_call|>", "<tool_call>"},
                           kGraniteClose[] = {"</tool_call>"},
                           kGraniteTemplates[] = {"<|tool_call|>"},
                           kGraniteAliases[] = {"granite-20b-fc"},
                           kPhiBegin[] = {"<|tool_call|>", "functools"},
                           kPhiClose[] = {"<|/tool_call|>"}, kPhiTemplates[] = {"<|/tool|>"},
                           kPhiMarks[] = {"<|tool_call|>", "<|/tool_call|>"},
                           kPhiAliases[] = {"phi4_mini_json", "phi4"},
                           kCommandBegin[] = {"<|START_ACTION|>", "Action: ```json",
                                              "Action:```json"},
                           kCommandClose[] = {"<|END_ACTION|>", "```"},
                           kCommandMarks[] = {"<|START_ACTION|>", "<|END_ACTION|>"},
                           kCommandTemplates[] = {"<|START_ACTION|>", "Write 'Action:'"},
                           kCommandAliases[] = {"cohere_command", "command"};

ToolCallForm list_form(std::string_view opener, const char* name, const char* arguments) {
  return {.begin = std::string(opener) + "[",
          .open = std::string("{\"") + name + "\": \"",
          .middle = std::string("\", \"") + arguments + "\": ",
          .close = "}",
          .between = ", ",
          .end = "]",
          .trigger = ""};
}

}  // namespace

extern const CallFormat kGraniteCalls = {
    .name = "granite",
    .aliases = kGraniteAliases,
    .templates = kGraniteTemplates,
    .marks = kGraniteBegin,
    .reader =
        [](const Json&) {
          return read_marked_calls({.begin = kGraniteBegin, .close = kGraniteClose});
        },
    .form = [] { return list_form("<|tool_call|>", "name", "arguments"); },
    .opener = "<|tool_call|>"};

extern const CallFormat kPhiCalls = {
    .name = "phi",
    .aliases = kPhiAliases,
    .templates = kPhiTemplates,
    .marks = kPhiMarks,
    .reader =
        [](const Json&) { return read_marked_calls({.begin = kPhiBegin, .close = kPhiClose}); },
    .form = [] { return list_form("<|tool_call|>", "name", "arguments"); },
    .opener = "<|tool_call|>"};

extern const CallFormat kCommandCalls = {
    .name = "command_r",
    .aliases = kCommandAliases,
    .templates = kCommandTemplates,
    .marks = kCommandMarks,
    .reader =
        [](const Json&) {
          return read_marked_calls({.begin = kCommandBegin, .close = kCommandClose});
        },
    .form = [] { return list_form("<|START_ACTION|>", "tool_name", "parameters"); },
    .opener = "<|START_ACTION|>"};

}  // namespace quire
