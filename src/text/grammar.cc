#include "text/grammar.h"

#include <fmt/core.h>
#include <openssl/sha.h>

#include "text/grammar_schema.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr std::size_t kSchemaBytesMax = 256 << 10, kRegexBytesMax = 8 << 10,
                      kRulesBytesMax = 64 << 10, kChoiceBytesMax = 64 << 10, kToolsMax = 128;

Error too_long(std::string_view what, std::size_t bytes, std::size_t max) {
  return {Code::invalid, fmt::format("{} has {} bytes; at most {} are taken", what, bytes, max)};
}

Status check_text(std::string_view what, std::string_view text, std::size_t max) {
  if (text.empty()) return Error{Code::invalid, fmt::format("{} is empty", what)};
  if (text.size() > max) return too_long(what, text.size(), max);
  if (text.find('\0') != text.npos)
    return Error{Code::invalid, fmt::format("{} holds a null character", what)};
  return {};
}

// Bounds the nesting of brackets, because readers of the text may recurse.
Status check_nesting(std::string_view what, std::string_view text) {
  constexpr int kDepthMax = 200;
  int depth = 0;
  for (const char c : text) {
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (depth > kDepthMax)
      return Error{Code::invalid,
                   fmt::format("{} nests brackets deeper than {} levels", what, kDepthMax)};
  }
  return {};
}

std::string as_rule(std::string_view text) {  // as a string of a rule
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else
      out += c;
  }
  return out + '"';
}

Result<std::string> schema_text(const Json& schema, bool strict) {
  TRY(const Json prepared, prepare_schema(schema, strict));
  std::string text = prepared.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kSchemaBytesMax) return too_long("the schema", text.size(), kSchemaBytesMax);
  return text;
}

}  // namespace

Result<Grammar> Grammar::from_json_schema(const Json& schema, SchemaOptions options) {
  TRY(std::string text, schema_text(schema, options.strict));
  return Grammar(Kind::json_schema, std::move(text), options.strict);
}

Grammar Grammar::json_object() {
  return Grammar(Kind::json_schema, R"({"type":"object","additionalProperties":true})", false);
}

Result<Grammar> Grammar::from_regex(std::string_view pattern) {
  TRY_STATUS(check_text("the regex", pattern, kRegexBytesMax));
  TRY_STATUS(check_nesting("the regex", pattern));
  return Grammar(Kind::regex, std::string(pattern), true);
}

Result<Grammar> Grammar::from_ebnf(std::string_view rules) {
  TRY_STATUS(check_text("the grammar", rules, kRulesBytesMax));
  TRY_STATUS(check_nesting("the grammar", rules));
  return Grammar(Kind::ebnf, std::string(rules), true);
}

Result<Grammar> Grammar::choice(std::span<const std::string> texts) {
  std::string rules = "root ::= ";
  std::size_t bytes = 0;
  for (const std::string& text : texts) {
    TRY_STATUS(check_text("a choice", text, kChoiceBytesMax));
    if (!utf8_valid(text)) return Error{Code::invalid, "a choice is not UTF-8"};
    bytes += text.size();
    rules += (&text == texts.data() ? "" : " | ") + as_rule(text);
  }
  if (texts.empty()) return Error{Code::invalid, "there is nothing to choose from"};
  if (bytes > kChoiceBytesMax) return too_long("all choices together", bytes, kChoiceBytesMax);
  return Grammar(Kind::ebnf, std::move(rules), true);
}

Result<Grammar> Grammar::tool_calls(std::span<const ToolShape> tools, const ToolCallForm& form) {
  if (tools.empty() || tools.size() > kToolsMax)
    return Error{Code::invalid, fmt::format("1 to {} tools can be called", kToolsMax)};
  Json list = Json::array();
  std::size_t bytes = 0;
  for (const ToolShape& tool : tools) {
    auto text = schema_text(tool.parameters, tool.strict);
    if (!text.ok())
      return Error{text.error().code,
                   fmt::format("function '{}': {}", tool.name, text.error().message)};
    bytes += text.value().size();
    list.push_back({tool.name, std::move(text.value()), tool.strict});
  }
  if (bytes > kSchemaBytesMax) return too_long("all tools together", bytes, kSchemaBytesMax);
  const Json all = {{"begin", form.begin},       {"open", form.open},
                    {"middle", form.middle},     {"close", form.close},
                    {"between", form.between},   {"end", form.end},
                    {"trigger", form.trigger},   {"required", form.required},
                    {"parallel", form.parallel}, {"tools", std::move(list)}};
  return Grammar(Kind::tool_calls, all.dump(-1, ' ', false, Json::error_handler_t::replace), false);
}

std::string Grammar::digest() const {
  std::string all{static_cast<char>(kind_), static_cast<char>(strict_)};
  all += text_;
  std::string out(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(all.data()), all.size(),
         reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

}  // namespace quire
