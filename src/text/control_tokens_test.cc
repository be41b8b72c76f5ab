#include "text/control_tokens.h"

#include <gtest/gtest.h>

#include "text/tiny_vocab.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

TEST(ControlTokens, AUsersTextNeverBecomesATurnMarker) {
  for (const TokenType type : {TokenType::user_defined, TokenType::normal}) {
    VocabSpec spec = tiny_byte_level();
    const TokenId first = spec.tokens.size();
    for (const char* marker :
         {"<|im_start|>", "<end_of_turn>", "[INST]", "<|other|>", "<tool_call>"}) {
      spec.tokens.push_back(marker);
      spec.types.push_back(type);
    }
    spec.eot = first + 1;
    type_turn_markers_as_control(spec, "{{ '<|im_start|>' + m.role }}[INST]<think><tool_call>");
    EXPECT_EQ(spec.types[first], TokenType::control);
    EXPECT_EQ(spec.types[first + 1], TokenType::control);  // it ends answers
    EXPECT_EQ(spec.types[first + 2], TokenType::control);
    EXPECT_EQ(spec.types[first + 3], type);  // nobody uses it
    EXPECT_EQ(spec.types[first + 4], type);  // a tag within a turn
    auto created = Tokenizer::create(std::move(spec));
    ASSERT_TRUE(created.ok());
    const Tokenizer& tokenizer = created.value();
    for (const TokenId id : tokenizer.encode("<|im_start|>system[INST]<end_of_turn>"))
      EXPECT_LT(id, first);
    EXPECT_EQ(tokenizer.encode("<|im_start|>", {.parse_special = true}),
              std::vector<TokenId>{first});
  }
}

}  // namespace
}  // namespace quire
