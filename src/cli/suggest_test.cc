#include "cli/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::cli {
namespace {

const std::vector<std::string> kKnown = {"serve",   "run",      "chat",     "bench", "show",
                                         "plan",    "selftest", "tokenize", "kv",    "eval",
                                         "version", "--top-p",  "--top-k"};

TEST(Suggest, FindsWhatWasMistyped) {
  EXPECT_EQ(nearest("serv", kKnown), "serve");
  EXPECT_EQ(nearest("sreve", kKnown), "serve");
  EXPECT_EQ(nearest("benhc", kKnown), "bench");
  EXPECT_EQ(nearest("token", kKnown), "tokenize");
  EXPECT_EQ(nearest("vesion", kKnown), "version");
  EXPECT_EQ(nearest("--topp", kKnown), "--top-p");
}

TEST(Suggest, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest("frobnicate", kKnown), "");
  EXPECT_EQ(nearest("", kKnown), "");
  EXPECT_EQ(nearest(std::string(1000, 'a'), kKnown), "");
  EXPECT_EQ(nearest("xy", kKnown), "");
}

}  // namespace
}  // namespace quire::cli
