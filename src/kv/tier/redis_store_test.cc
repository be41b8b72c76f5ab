#include "kv/tier/redis_store.h"

#include <gtest/gtest.h>

#include "kv/tier/redis_reply.h"

namespace quire {
namespace {

// As the cluster specification has them.
TEST(RedisStore, SlotsAreThoseOfTheSpecification) {
  EXPECT_EQ(redis_slot("123456789"), 12739u);
  EXPECT_EQ(redis_slot("foo"), 12182u);
  EXPECT_EQ(redis_slot(""), 0u);
}

TEST(RedisStore, AddressesAreRead) {
  const auto one = parse_redis_url("redis://10.0.0.1:7000,[::1]:7001,host?ttl=60");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one.value().nodes,
            (std::vector<RedisAddress>{{"10.0.0.1", 7000}, {"::1", 7001}, {"host", 6379}}));
  EXPECT_EQ(one.value().ttl_s, 60u);
  EXPECT_FALSE(one.value().tls);
  const auto two = parse_redis_url("rediss://me:se@cret@host:1/?ca=/x/ca.pem&patience=20");
  ASSERT_TRUE(two.ok());
  EXPECT_TRUE(two.value().tls);
  EXPECT_EQ(two.value().user, "me");
  EXPECT_EQ(two.value().password, "se@cret");
  EXPECT_EQ(two.value().ca_file, "/x/ca.pem");
  EXPECT_EQ(two.value().patience, 20'000'000);
  for (const char* bad : {"http://a", "redis://", "redis://a:0", "redis://a:x", "redis://a,,b",
                          "redis://[::1", "redis://a?ttl=0", "redis://a?x=1", "redis://a:70000"})
    EXPECT_FALSE(parse_redis_url(bad).ok()) << bad;
}

TEST(RedisReader, ReadsEveryKindWholeAndInParts) {
  const std::string text =
      "+OK\r\n-MOVED 1 a:2\r\n:-42\r\n$5\r\nhe\r\no\r\n$-1\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n";
  const std::vector<RedisReply> want = {
      {.kind = RedisReply::Kind::text, .text = "OK"},
      {.kind = RedisReply::Kind::error, .text = "MOVED 1 a:2"},
      {.kind = RedisReply::Kind::integer, .integer = -42},
      {.kind = RedisReply::Kind::bytes, .text = "he\r\no"},
      {.kind = RedisReply::Kind::nothing},
      {.kind = RedisReply::Kind::list,
       .list = {{.kind = RedisReply::Kind::integer, .integer = 1},
                {.kind = RedisReply::Kind::list, .list = {{.kind = RedisReply::Kind::bytes}}}}}};
  for (std::size_t part = 1; part <= text.size(); ++part) {
    RedisReader reader;
    std::vector<RedisReply> got;
    for (std::size_t at = 0; at < text.size(); at += part) {
      reader.feed(std::as_bytes(std::span(text).subspan(at, std::min(part, text.size() - at))));
      while (auto r = reader.next()) got.push_back(std::move(*r));
    }
    EXPECT_EQ(got, want) << part;
    EXPECT_FALSE(reader.broken());
  }
}

TEST(RedisReader, RefusesWhatIsNoReply) {
  for (const std::string text : {"HTTP/1.1 400\r\n", "$-2\r\n", "$1\r\nab\r\n", ":x\r\n",
                                 "$99999999999\r\n", "*99999999\r\n"}) {
    RedisReader reader;
    reader.feed(std::as_bytes(std::span(text)));
    EXPECT_FALSE(reader.next()) << text;
    EXPECT_TRUE(reader.broken()) << text;
  }
  RedisReader deep;
  std::string nested;
  for (int i = 0; i < 20; ++i) nested += "*1\r\n";
  deep.feed(std::as_bytes(std::span(nested)));
  EXPECT_FALSE(deep.next());
  EXPECT_TRUE(deep.broken());
}

}  // namespace
}  // namespace quire
