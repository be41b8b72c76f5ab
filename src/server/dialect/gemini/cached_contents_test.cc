#include "server/dialect/gemini/cached_contents.h"

#include <gtest/gtest.h>

#include <set>

#include "server/access_log.h"

namespace quire::gemini {
namespace {

CachedContent content(const char* tenant, std::int64_t expires = 100, std::size_t bytes = 10) {
  return {.tenant = tenant,
          .model = "m",
          .display_name = "",
          .body = std::make_shared<const std::string>(bytes, 'x'),
          .expires = expires};
}

TEST(CachedContents, LiveUntilTheyExpireOrAreRemoved) {
  CachedContents all;
  const CachedContent made = all.add(content("a"), 1).value();
  EXPECT_EQ(made.name.size(), std::string("cachedContents/").size() + 12);
  EXPECT_TRUE(all.find("a", made.name, 99));
  EXPECT_TRUE(all.find("a", made.name.substr(15), 99)) << "the short name";
  EXPECT_FALSE(all.find("a", made.name, 100));
  ASSERT_TRUE(all.set_expiry("a", made.name, 200, 50));
  EXPECT_TRUE(all.find("a", made.name, 199));
  EXPECT_FALSE(all.set_expiry("a", made.name, 400, 300)) << "it has expired";
  EXPECT_TRUE(all.remove("a", made.name, 150));
  EXPECT_FALSE(all.remove("a", made.name, 150));
  EXPECT_FALSE(all.find("a", made.name, 150));
}

TEST(CachedContents, TenantsSeeTheirOwn) {
  CachedContents all;
  const CachedContent made = all.add(content("a"), 1).value();
  EXPECT_FALSE(all.find("b", made.name, 1));
  EXPECT_FALSE(all.set_expiry("b", made.name, 200, 1));
  EXPECT_FALSE(all.remove("b", made.name, 1));
  EXPECT_TRUE(all.list("b", "", 10, 1).empty());
  EXPECT_EQ(all.list("a", "", 10, 1).size(), 1u);
}

TEST(CachedContents, PagesHoldEachOnce) {
  CachedContents all;
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(all.add(content("a"), 1).ok());
  ASSERT_TRUE(all.add(content("a", 5), 1).ok());  // expires
  ASSERT_TRUE(all.add(content("b"), 1).ok());
  std::set<std::string> names;
  std::string after;
  for (int page = 0; page < 4; ++page)
    for (const CachedContent& c : all.list("a", after, 2, 10)) {
      EXPECT_TRUE(names.insert(c.name).second);
      after = c.name;
    }
  EXPECT_EQ(names.size(), 7u);
}

TEST(CachedContents, AreBounded) {
  CachedContents all({.tenant_count = 3, .tenant_bytes = 100, .bytes = 150});
  EXPECT_FALSE(all.add(content("a", 100, 101), 1).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(all.add(content("a", 50 + i), 1).ok());
  EXPECT_EQ(all.add(content("a"), 1).error().code, Code::exhausted);
  EXPECT_FALSE(all.room_for("a", 1, 1).ok());
  EXPECT_TRUE(all.add(content("a"), 50).ok()) << "one has expired";
  EXPECT_TRUE(all.add(content("b", 100, 90), 50).ok());
  EXPECT_FALSE(all.add(content("c", 100, 40), 50).ok()) << "more than all may have";
}

std::optional<std::int64_t> expiry(const Json& body, std::int64_t now = 1'000'000'000) {
  Fields f(body, {}, Fields::Spelling::either);
  const auto parsed = parse_expiry(f, now);
  EXPECT_EQ(f.failed(), !parsed && !body.empty()) << body;
  return parsed;
}

TEST(CachedContents, ExpiryIsATimeToComeOrSeconds) {
  EXPECT_EQ(expiry({{"ttl", "300s"}}), 301'000'000'000);
  EXPECT_EQ(expiry({{"ttl", "0.5s"}}), 1'500'000'000);
  EXPECT_EQ(expiry({{"expireTime", "1970-01-01T00:00:02Z"}}), 2'000'000'000);
  EXPECT_EQ(expiry({{"expire_time", "1970-01-01T01:00:02.25+01:00"}}), 2'250'000'000);
  EXPECT_FALSE(expiry(Json::object()));
  for (const char* ttl : {"300", "s", "", "-1s", "0s", "1m", "nans", "infs", "1e300s", "1s "})
    EXPECT_FALSE(expiry({{"ttl", ttl}})) << ttl;
  EXPECT_FALSE(expiry({{"ttl", 300}}));
  EXPECT_FALSE(expiry({{"expireTime", "1970-01-01T00:00:01Z"}})) << "now is no time to come";
  EXPECT_FALSE(expiry({{"ttl", "1s"}, {"expireTime", "2030-01-01T00:00:00Z"}}));
}

TEST(Times, AreReadAsTheyAreWritten) {
  for (const std::int64_t t : {0ll, 1'795'000'000'123'456'000ll, 951'782'400'000'000'000ll})
    EXPECT_EQ(parse_rfc3339(rfc3339(t)), t);
  for (const char* wrong :
       {"", "2026", "2026-11-15", "2026-11-15T03:00:00", "2026-13-15T03:00:00Z",
        "2026-11-15T24:00:00Z", "2026-11-15T03:00:00.Z", "2026-11-15T03:00:00Zx",
        "2026-11-15T03:00:00+1:00", "1969-11-15T03:00:00Z", "x026-11-15T03:00:00Z"})
    EXPECT_FALSE(parse_rfc3339(wrong)) << wrong;
}

}  // namespace
}  // namespace quire::gemini
