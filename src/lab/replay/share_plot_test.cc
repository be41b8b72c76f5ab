#include "lab/replay/share_plot.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(SharePlot, DrawsALineForEachCurveAndEscapesNames) {
  const std::string page =
      share_page("a<b", {{"lru", {{10, 0.1}, {100, 0.5}}}, {"x&y", {{10, 0.2}}}}, 1 << 20);
  EXPECT_NE(page.find("a&lt;b"), std::string::npos);
  EXPECT_NE(page.find("x&amp;y"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace quire
