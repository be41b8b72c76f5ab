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

TEST(ApiKeys, TheFileSaysWhatATenantMayKeep) {
  const auto keys = ApiKeys::parse(
      "first-key-1 tenant=acme quota_bytes=1000 pin_bytes=10 leases=3\n"
      "second-key tenant=acme\nthird-key-3 leases=7\nfourth-key-4 admin\n");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  ASSERT_EQ(keys.value().limits().size(), 2u);
  EXPECT_EQ(keys.value().limits().at("acme"),
            (TenantLimits{.bytes = 1000, .pin_bytes = 10, .leases = 3}));
  EXPECT_EQ(keys.value().limits().at(keys.value().find("third-key-3")->tenant).leases, 7u);
  for (const char* wrong : {"quota_bytes=0", "quota_bytes=-1", "quota_bytes=1GiB", "leases=65537",
                            "leases=", "pins=3", "quota_bytes=99999999999999999999"}) {
    const auto refused = ApiKeys::parse(std::string("first-key-1 ") + wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_NE(refused.error().message.find("line 1"), std::string::npos);
  }
  EXPECT_FALSE(
      ApiKeys::parse("first-key-1 tenant=a leases=1\nsecond-key tenant=a leases=2\n").ok());
}

}  // namespace
}  // namespace quire
