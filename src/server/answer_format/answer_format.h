// server/answer_format/answer_format.h - how families of models write tool calls and reasoning: an entry of
// a table each.
//
// A model's chat template reveals its family, because it shows earlier calls as the model writes
// them. --tool-call-parser and --reasoning-parser name an entry instead.
//
//   const AnswerFormat format = answer_format(chat_template.source());
//   AnswerReader reader(format, {.tools = asked.tools, .prompt_end = prompt.tail});
//   for (const ToolPiece& p : reader.add(text)) ...
//
// An entry is a file of this folder and a line in answer_formats.cc.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/answer_format/call_reader.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace quire {

struct CallFormat {
  std::string_view name;
  std::span<const std::string_view> aliases = {};    // other servers' names
  std::span<const std::string_view> templates = {};  // one of these texts in a template reveals it
  // Marks that are control tokens in some vocabularies. They stay in the text that is read.
  std::span<const std::string_view> marks = {};
  std::unique_ptr<CallReader> (*reader)(const Json& tools) = nullptr;
  // How a grammar writes calls where a request forces them; null: as a bare object.
  ToolCallForm (*form)() = nullptr;
  std::string_view opener = {};  // the mark that `form` begins with, if it may be a control token
};

struct ReasoningFormat {
  std::string_view name;
  std::span<const std::string_view> aliases = {};
  std::span<const std::string_view> templates = {};
  std::string_view open = {}, close = {};  // empty: the calls' reader reads it, too
};

struct AnswerFormat {
  const CallFormat* calls = nullptr;           // null: calls stay text
  const ReasoningFormat* reasoning = nullptr;  // null: reasoning stays text
};

// Of a model with this template, unless a parser is named: "auto" or nothing, "none", or an entry's
// name or alias. A name that is no entry counts as "auto"; check it before.
struct ParserNames {
  std::string calls = {}, reasoning = {};
};
AnswerFormat answer_format(std::string_view chat_template, const ParserNames& names = {});
Status check_parser_names(const ParserNames& names);

std::span<const CallFormat* const> call_formats();
std::span<const ReasoningFormat* const> reasoning_formats();
const CallFormat* find_call_format(std::string_view name);  // null: there is none
const CallFormat& bare_calls();  // objects {"name": ..., "arguments": ...} without any mark

// Control tokens that belong to the answer's format and must not be hidden.
std::vector<TokenId> visible_tokens(AnswerFormat format, const Tokenizer& tokenizer);

}  // namespace quire
