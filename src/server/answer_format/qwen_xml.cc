// server/answer_format/qwen_xml.cc - Qwen3-Coder and Qwen3.5: <function=f> with a <parameter=x> for each
// argument, between <tool_call> tags. Format: the chat template of Qwen3-Coder.
#include "server/answer_format/answer_format.h"
#include "server/answer_format/block_calls.h"
#include "server/answer_format/json_call.h"

namespace quire {
namespace {

std::string_view without_line_feeds(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// Texts stay texts where the tool says so; other values are JSON if they can be.
Json xml_value(std::string_view text, const Json& tools, const std::string& function,
               const std::string& parameter) {
  if (tools.is_array())
    for (const Json& tool : tools) {
      const Json& f = tool["function"];
      if (f["name"] != function || !f.contains("parameters")) continue;
      const Json& schema = f["parameters"];
      if (!schema.is_object() || !schema.contains("properties")) continue;
      const Json& all = schema["properties"];
      if (all.is_object() && all.contains(parameter) && all[parameter].is_object() &&
          all[parameter].value("type", Json()) == "string")
        return std::string(text);
    }
  auto parsed = parse_json(text, kRequestJson);
  return parsed.ok() ? std::move(parsed.value()) : Json(std::string(text));
}

bool parse_xml_function(std::string_view block, const Json& tools, std::vector<ReadCall>& calls) {
  constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=",
                             kEnd = "</function>", kParameterEnd = "</parameter>";
  const std::size_t start = block.find_first_not_of(kBlanks);
  if (start == block.npos || !block.substr(start).starts_with(kFunction)) return false;
  block.remove_prefix(start + kFunction.size());
  const std::size_t named = block.find('>');
  if (named == block.npos || named == 0) return false;
  ReadCall call{std::string(block.substr(0, named))};
  block.remove_prefix(named + 1);
  for (;;) {
    const std::size_t next = block.find_first_not_of(kBlanks);
    if (next == block.npos) return false;
    block.remove_prefix(next);
    if (block.starts_with(kEnd)) break;
    if (!block.starts_with(kParameter) || call.arguments.size() >= kArgumentsMax) return false;
    block.remove_prefix(kParameter.size());
    const std::size_t key = block.find('>');
    if (key == block.npos) return false;
    const std::string parameter(block.substr(0, key));
    const std::size_t end = block.find(kParameterEnd, key);
    if (end == block.npos) return false;
    call.arguments[parameter] = xml_value(without_line_feeds(block.substr(key + 1, end - key - 1)),
                                          tools, call.name, parameter);
    block.remove_prefix(end + kParameterEnd.size());
  }
  if (block.substr(kEnd.size()).find_first_not_of(kBlanks) != block.npos) return false;
  calls.push_back(std::move(call));
  return true;
}

constexpr BlockMarks kXmlBlocks[] = {{"<tool_call>", "</tool_call>"}};
constexpr std::string_view kXmlAliases[] = {"qwen3_xml"};
constexpr std::string_view kXmlMarks[] = {"<tool_call>", "</tool_call>"};
constexpr std::string_view kXmlTemplates[] = {"<function="};

}  // namespace

extern const CallFormat kQwenXmlCalls = {
    .name = "qwen3_coder",
    .aliases = kXmlAliases,
    .templates = kXmlTemplates,
    .marks = kXmlMarks,
    .reader = [](const Json& tools) {
      return read_block_calls({.marks = kXmlBlocks, .parse = parse_xml_function}, tools);
    }};

}  // namespace quire
