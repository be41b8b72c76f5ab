// text/grammar.h - what an answer must look like: a JSON schema, a regex, rules, or tool calls.
//
// A Grammar is only a description, checked and bounded. text/grammar_compiler.h compiles it to
// something that masks tokens. The server fills it from response_format, structured_outputs and
// tools:
//
//   TRY(Grammar g, Grammar::from_json_schema(schema, {.strict = true}));
//   TRY(Grammar g, Grammar::from_regex("[A-Z]{3}-[0-9]{4}"));
//
// JSON is written on one line, with one space after ',' and ':', and with keys in the order of the
// schema: a small model that may write white space anywhere does not always stop. Keys that a
// schema does not mention are not written: {"properties": {"a": ...}} gives an object of "a" alone.
// An object or array without any constraint may hold anything.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace quire {

struct SchemaOptions {
  bool strict = false;  // a keyword that cannot be enforced is an error that names it
};

// A function that may be called.
struct ToolShape {
  std::string name;
  Json parameters;  // the schema of its arguments
  bool strict = false;
};

// How calls are written: begin, calls with `between` between them, end. A call is
// open NAME middle ARGUMENTS close.
struct ToolCallForm {
  std::string begin = "";
  std::string open = "<tool_call>\n{\"name\": \"",
              middle = "\", \"arguments\": ", close = "}\n</tool_call>";
  std::string between = "\n", end = "";
  std::string trigger = "<tool_call>";  // where `open` begins; of calls that are not required
  bool required = true;                 // otherwise any text, and calls within it
  bool parallel = true;                 // more than one
};

class Grammar {
 public:
  enum class Kind : std::uint8_t { json_schema, regex, ebnf, tool_calls };

  static Result<Grammar> from_json_schema(const Json& schema, SchemaOptions options = {});
  static Grammar json_object();                                 // any object
  static Result<Grammar> from_regex(std::string_view pattern);  // of the whole answer
  // Rules in the notation of xgrammar (GBNF: root ::= "yes" | "no"); the first is `root`.
  static Result<Grammar> from_ebnf(std::string_view rules);
  static Result<Grammar> choice(std::span<const std::string> texts);
  static Result<Grammar> tool_calls(std::span<const ToolShape> tools, const ToolCallForm& form);

  Kind kind() const { return kind_; }
  bool strict() const { return strict_; }
  // A schema, regex or rules; of tool calls {"form": ..., "tools": [[name, schema, strict]...]}.
  const std::string& text() const { return text_; }
  std::string digest() const;  // 32 bytes: equal for equal grammars

 private:
  Grammar(Kind kind, std::string text, bool strict)
      : kind_(kind), strict_(strict), text_(std::move(text)) {}

  Kind kind_;
  bool strict_;
  std::string text_;
};

}  // namespace quire
