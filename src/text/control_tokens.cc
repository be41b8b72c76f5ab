#include "text/control_tokens.h"

#include <algorithm>
#include <string>

namespace quire {
namespace {

bool in_brackets(std::string_view spelling) {
  if (spelling.size() < 3 || spelling.find_first_of(" \t\r\n") != spelling.npos) return false;
  return (spelling.front() == '<' && spelling.back() == '>') ||
         (spelling.front() == '[' && spelling.back() == ']');
}

bool within_a_turn(std::string_view spelling) {
  for (const std::string_view tag : {"think", "tool_call", "tool_response", "tools", "tool"})
    for (const char* const form : {"<{}>", "</{}>", "<|{}|>", "<|/{}|>"}) {
      std::string text(form);
      text.replace(text.find("{}"), 2, tag);
      if (spelling == text) return true;
    }
  return false;
}

}  // namespace

void type_turn_markers_as_control(VocabSpec& spec, std::string_view chat_template) {
  if (spec.types.empty()) spec.types.assign(spec.tokens.size(), TokenType::normal);
  const auto ends_answers = [&](TokenId id) {
    return id == spec.eos || id == spec.eot ||
           std::ranges::find(spec.end_of_generation, id) != spec.end_of_generation.end();
  };
  for (std::size_t i = 0; i < spec.tokens.size() && i < spec.types.size(); ++i) {
    TokenType& type = spec.types[i];
    if (type != TokenType::normal && type != TokenType::user_defined) continue;
    const std::string_view spelling = spec.tokens[i];
    if (!in_brackets(spelling) || within_a_turn(spelling)) continue;
    if (ends_answers(static_cast<TokenId>(i)) || chat_template.find(spelling) != chat_template.npos)
      type = TokenType::control;
  }
}

}  // namespace quire
