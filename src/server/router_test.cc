#include "server/router.h"

#include <gtest/gtest.h>

#include "server/auth.h"

namespace quire {
namespace {

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", Access::user, nullptr},
    {"GET", "/v1/models", Access::user, nullptr},
    {"GET", "/v1/models/{id*}", Access::user, nullptr},
    {"GET", "/v1/kv/pins/{id}", Access::user, nullptr},
    {"DELETE", "/v1/kv/pins/{id}", Access::user, nullptr},
    {"GET", "/health", Access::open, nullptr},
    {"POST", "/v1beta/models/{id*}:count", Access::user, nullptr},
};

TEST(Router, PathsWorkWithAndWithoutTheVersion) {
  EXPECT_EQ(find_route(kRoutes, "POST", "/v1/chat/completions").route, &kRoutes[0]);
  EXPECT_EQ(find_route(kRoutes, "POST", "/chat/completions").route, &kRoutes[0]);
  EXPECT_EQ(find_route(kRoutes, "GET", "/models/").route, &kRoutes[1]);
  EXPECT_EQ(find_route(kRoutes, "GET", "/v1/health").route, &kRoutes[5]);
  EXPECT_EQ(find_route(kRoutes, "HEAD", "/health").route, &kRoutes[5]);
}

TEST(Router, ArgumentsAreDecoded) {
  EXPECT_EQ(find_route(kRoutes, "GET", "/v1/models/a%2Fb").arguments,
            std::vector<std::string>{"a/b"});
  EXPECT_EQ(find_route(kRoutes, "GET", "/v1/models/a/b").arguments,
            std::vector<std::string>{"a/b"});
  EXPECT_EQ(find_route(kRoutes, "GET", "/v1/kv/pins/7").arguments, std::vector<std::string>{"7"});
  EXPECT_EQ(find_route(kRoutes, "GET", "/v1/kv/pins/7/8").route, nullptr);
}

TEST(Router, AnArgumentEndsWhereTheTextAfterItStandsLast) {
  EXPECT_EQ(find_route(kRoutes, "POST", "/v1beta/models/a/b:count:count").arguments,
            std::vector<std::string>{"a/b:count"});
  EXPECT_EQ(find_route(kRoutes, "POST", "/v1beta/models/a%2Fb:count").route, &kRoutes[6]);
  for (const char* path : {"/v1beta/models/a:counts", "/v1beta/models/a", "/v1beta/models/:count"})
    EXPECT_EQ(find_route(kRoutes, "POST", path).route, nullptr) << path;
}

TEST(Router, WrongMethodNamesTheRightOnes) {
  const RouteMatch m = find_route(kRoutes, "PUT", "/v1/kv/pins/1");
  EXPECT_EQ(m.route, nullptr);
  EXPECT_EQ(m.allow, "GET, DELETE");
  EXPECT_EQ(find_route(kRoutes, "GET", "/nowhere").allow, "");
  EXPECT_EQ(find_route(kRoutes, "GET", "/v1/kv/pins/").allow, "");
}

TEST(ApiKeys, FileSaysWhoMayWhat) {
  const auto keys = ApiKeys::parse("# ours\nuser-key-1 tenant=acme\n\nadmin-key-1 admin\n");
  ASSERT_TRUE(keys.ok());
  const auto user = keys.value().find("user-key-1");
  ASSERT_TRUE(user);
  EXPECT_EQ(user->tenant, "acme");
  EXPECT_FALSE(user->admin);
  EXPECT_TRUE(keys.value().find("admin-key-1")->admin);
  EXPECT_FALSE(keys.value().find("user-key-2"));
  EXPECT_FALSE(keys.value().find(""));
  EXPECT_NE(user->key_id.find_first_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(user->key_id.size(), 8u);
}

TEST(ApiKeys, MistakesAreNamed) {
  EXPECT_FALSE(ApiKeys::parse("").ok());
  EXPECT_NE(ApiKeys::parse("long-enough admim").error().message.find("admim"), std::string::npos);
  EXPECT_NE(ApiKeys::parse("\nshort").error().message.find("line 2"), std::string::npos);
}

TEST(ApiKeys, WithoutKeysEverybodyMay) { EXPECT_TRUE(ApiKeys().find("")->admin); }

TEST(ApiKeys, KeyComesFromTheFirstPlaceThatHasOne) {
  HttpRequest r;
  r.query = "key=query";
  EXPECT_EQ(presented_key(r), "query");
  r.headers.push_back({"X-Goog-Api-Key", "goog"});
  EXPECT_EQ(presented_key(r), "goog");
  r.headers.push_back({"Authorization", "Bearer token"});
  EXPECT_EQ(presented_key(r), "token");
  r.headers.push_back({"X-Api-Key", "key"});
  EXPECT_EQ(presented_key(r), "key");
}

}  // namespace
}  // namespace quire
