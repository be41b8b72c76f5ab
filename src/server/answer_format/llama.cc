// server/answer_format/llama.cc - Llama 3.1 to 3.3: {"name": "f", "parameters": {...}}, alone or behind
// <|python_tag|>, several parted by semicolons; built-in tools as name.call(query="..."). Format: Meta's
// "Llama 3.1 model cards and prompt formats". Llama 3.2 and 4 also write calls as Python, in a list.
#include "server/answer_format/answer_format.h"
#include "server/answer_format/marked_calls.h"
#include "server/answer_format/python_calls.h"

namespace quire {
namespace {

constexpr std::string_view kLlamaBegin[] = {"<|python_tag|>"},
                           kLlamaAliases[] = {"llama3_json", "llama4_json", "llama"},
                           kPythonicAliases[] = {"llama4_pythonic", "olmo3"},
                           kPythonicTemplates[] = {"<|python_start|>", "tool_code"},
                           kPythonicMarks[] = {"<|python_start|>", "<|python_end|>"};

// Code for an interpreter is no call of a function: it stays text.
bool read_builtin(std::string_view text, std::vector<ReadCall>& calls) {
  if (!parse_python_calls(text, calls) || calls.size() != 1) return false;
  std::string& name = calls[0].name;
  if (!name.ends_with(".call") || name.size() == 5) return false;
  name.resize(name.size() - 5);
  return true;
}

ToolCallForm llama_form() {
  return {.open = "{\"name\": \"",
          .middle = "\", \"parameters\": ",
          .close = "}",
          .between = "",
          .trigger = "",
          .parallel = false};
}

constexpr BlockMarks kPythonicBlocks[] = {{"<|python_start|>", "<|python_end|>"},
                                          {"```tool_code\n", "```"}};

bool parse_pythonic(std::string_view block, const Json&, std::vector<ReadCall>& calls) {
  return parse_python_calls(block, calls);
}

}  // namespace

extern const CallFormat kLlamaCalls = {
    .name = "llama3",
    .aliases = kLlamaAliases,
    .templates = kLlamaBegin,
    .marks = kLlamaBegin,
    .reader =
        [](const Json&) {
          return read_marked_calls({.begin = kLlamaBegin, .bare = true, .rest = read_builtin});
        },
    .form = llama_form};

extern const CallFormat kPythonicCalls = {
    .name = "pythonic",
    .aliases = kPythonicAliases,
    .templates = kPythonicTemplates,
    .marks = kPythonicMarks,
    .reader = [](const Json& tools) {
      return read_block_calls(
          {.marks = kPythonicBlocks, .bare_list = true, .parse = parse_pythonic}, tools);
    }};

}  // namespace quire
