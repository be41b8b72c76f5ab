#include "server/answer_format/reasoning.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr ReasoningMarks kThink = {"<think>", "</think>"};

struct Parted {
  std::string reasoning, content;
  bool operator==(const Parted&) const = default;
};

Parted part(std::string_view text, std::size_t step, std::string_view prompt) {
  ReasoningReader reader(kThink, prompt);
  Parted out;
  for (std::size_t i = 0; i < text.size(); i += step)
    reader.add(text.substr(i, step), out.reasoning, out.content);
  reader.finish(out.reasoning, out.content);
  return out;
}

// However the text is cut, the same comes out.
Parted part(std::string_view text, std::string_view prompt = "<|im_start|>assistant\n") {
  const Parted whole = part(text, text.size() + 1, prompt);
  for (std::size_t step = 1; step < text.size(); ++step)
    EXPECT_EQ(part(text, step, prompt), whole) << "in pieces of " << step << ": " << text;
  return whole;
}

TEST(Reasoning, IsPartedFromTheAnswer) {
  EXPECT_EQ(part("<think>\nSix\n\ntimes </ seven.\n</think>\n\nIt is 42."),
            (Parted{"Six\n\ntimes </ seven.", "It is 42."}));
  EXPECT_EQ(part("<think>\n\n</think>\n\nHello"), (Parted{"", "Hello"}));
}

TEST(Reasoning, MayHaveBegunInThePrompt) {
  EXPECT_EQ(part("Hm.\n</think>\n\nYes.", "<|im_start|>assistant\n<think>\n"),
            (Parted{"Hm.", "Yes."}));
  EXPECT_EQ(part("Yes.", "<think>\n\n</think>\n\n"), (Parted{"", "Yes."}));
}

TEST(Reasoning, ThatDoesNotEndIsAllThereIs) {
  EXPECT_EQ(part("<think>\nWell\n\n"), (Parted{"Well", ""}));
  EXPECT_EQ(part("<think>\nWell </thin"), (Parted{"Well </thin", ""}));
}

TEST(Reasoning, IsNothingElse) {
  EXPECT_EQ(part(" <thin"), (Parted{"", " <thin"}));
  EXPECT_EQ(part("I <think>so</think>"), (Parted{"", "I <think>so</think>"}));
  EXPECT_EQ(part("\n\n"), (Parted{"", "\n\n"}));
}

}  // namespace
}  // namespace quire
