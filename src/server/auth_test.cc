#include "server/auth.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(ApiKeys, AKeyIsATenantOfItsOwnUnlessToldOtherwise) {
  const auto keys = ApiKeys::parse(
      "first-key-1\nsecond-key admin\nthird-key-3 tenant=acme\n"
      "fourth-key-4 tenant=acme\n# a comment\n");
  ASSERT_TRUE(keys.ok());
  const auto tenant = [&](const char* key) { return keys.value().find(key)->tenant; };
  EXPECT_FALSE(tenant("first-key-1").empty());
  EXPECT_NE(tenant("first-key-1"), tenant("second-key"));
  EXPECT_EQ(tenant("third-key-3"), "acme");
  EXPECT_EQ(tenant("fourth-key-4"), "acme");
  EXPECT_FALSE(keys.value().find("first-key-2"));
  EXPECT_FALSE(keys.value().find(""));
}

}  // namespace
}  // namespace quire
