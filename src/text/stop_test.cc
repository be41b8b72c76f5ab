#include "text/stop.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace quire {
namespace {

StopStrings make(std::vector<std::string> strings) {
  auto made = StopStrings::create(strings);
  EXPECT_TRUE(made.ok());
  return std::move(made.value());
}

TEST(Stop, HoldsBackOnlyWhatMayBecomeAStopString) {
  const StopStrings stops = make({"\nUser:", "###"});
  StopMatcher matcher(stops);
  std::string out;
  EXPECT_FALSE(matcher.add("Hi\nUs", out));
  EXPECT_EQ(out, "Hi");
  EXPECT_FALSE(matcher.add("e a ##", out));
  EXPECT_EQ(out, "Hi\nUse a ");
  EXPECT_EQ(matcher.held(), 2u);
  EXPECT_EQ(matcher.add("# tail", out), 1u);
  EXPECT_EQ(out, "Hi\nUse a ");
}

TEST(Stop, TheEarliestEndWinsAndThenTheLongest) {
  const StopStrings stops = make({"abcd", "bc", "xbc"});
  std::string out;
  EXPECT_EQ(StopMatcher(stops).add("abcd", out), 1u);
  EXPECT_EQ(out, "a");
  out.clear();
  EXPECT_EQ(StopMatcher(stops).add("axbcd", out), 2u);
  EXPECT_EQ(out, "a");
}

TEST(Stop, FinishReleasesWhatWasHeld) {
  const StopStrings stops = make({"stop"});
  StopMatcher matcher(stops);
  std::string out;
  EXPECT_FALSE(matcher.add("sto", out));
  matcher.finish(out);
  EXPECT_EQ(out, "sto");
  EXPECT_EQ(matcher.held(), 0u);
}

TEST(Stop, WithoutStringsEverythingPasses) {
  const StopStrings none;
  StopMatcher matcher(none);
  std::string out;
  EXPECT_FALSE(matcher.add("text", out));
  EXPECT_EQ(out, "text");
}

TEST(Stop, RefusesTooManyTooLongEmptyAndBroken) {
  const auto fails = [](std::vector<std::string> strings) {
    return !StopStrings::create(strings).ok();
  };
  EXPECT_TRUE(fails(std::vector<std::string>(17, "x")));
  EXPECT_TRUE(fails({std::string(257, 'x')}));
  EXPECT_TRUE(fails({""}));
  EXPECT_TRUE(fails({"\xFF"}));
  EXPECT_FALSE(fails(std::vector<std::string>(16, std::string(256, 'x'))));
}

// Too simple to be wrong: after each byte, does the text so far end with a stop string?
std::pair<std::string, int> reference(const std::vector<std::string>& stops,
                                      std::string_view text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (std::size_t i = 0; i < stops.size(); ++i)
      if (text.substr(0, end).ends_with(stops[i]) &&
          (best < 0 || stops[i].size() > stops[static_cast<std::size_t>(best)].size()))
        best = static_cast<int>(i);
    if (best >= 0)
      return {std::string(text.substr(0, end - stops[static_cast<std::size_t>(best)].size())),
              best};
  }
  return {std::string(text), -1};
}

TEST(Stop, AgreesWithLookingAtEveryEnding) {
  Random random(3);
  for (int round = 0; round < 20'000; ++round) {
    const auto word = [&](std::size_t most) {
      std::string s(1 + random.below(most), 'a');
      for (char& c : s) c = static_cast<char>('a' + random.below(2));
      return s;
    };
    std::vector<std::string> strings;
    for (auto n = 1 + random.below(4); n > 0; --n) strings.push_back(word(6));
    const std::string text = word(24);
    const auto [want, which] = reference(strings, text);
    const StopStrings stops = make(strings);
    StopMatcher matcher(stops);
    std::string out;
    std::optional<std::size_t> hit;
    for (std::size_t at = 0; at < text.size() && !hit;) {
      const std::size_t size = 1 + random.below(5);
      hit = matcher.add(std::string_view(text).substr(at, size), out);
      at += size;
      EXPECT_TRUE(want.starts_with(out));
    }
    if (!hit) matcher.finish(out);
    EXPECT_EQ(out, want);
    EXPECT_EQ(hit ? static_cast<int>(*hit) : -1, which);
  }
}

}  // namespace
}  // namespace quire
