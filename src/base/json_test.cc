#include "base/json.h"

#include <gtest/gtest.h>

#include <chrono>

namespace quire {
namespace {

std::string object_of(std::size_t keys, const std::string& value = "1") {
  std::string text = "{";
  for (std::size_t i = 0; i < keys; ++i)
    text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":" + value;
  return text + "}";
}

TEST(Json, KeysStayInTheirOrderAndTheLastOfEqualOnesCounts) {
  EXPECT_EQ(
      parse_json(R"({"b":1,"a":[1,-2,2.5,"x",null,true,{"c":{}}],"b":{"d":2}})").value().dump(),
      R"({"b":{"d":2},"a":[1,-2,2.5,"x",null,true,{"c":{}}]})");
  std::string many = object_of(100);
  many.back() = ',';
  EXPECT_EQ(parse_json(many + R"("k0":7,"k99":8})").value().size(), 100u);
  EXPECT_EQ(parse_json(many + R"("k0":7,"k99":8})").value()["k0"], 7);
}

TEST(Json, AgreesWithTheLibrarysOwnParser) {
  for (const char* text : {"1", "\"\\u00e9\\ud83d\\ude00\"", "[]", "[[],[[]],{}]", "-0.5e3",
                           "18446744073709551615", "{\"\":{\"\":[{}]}}", " { \"a\" : [ 1 ] } "})
    EXPECT_EQ(parse_json(text).value(), Json::parse(text)) << text;
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "nul", "\"\\ud83d\"", "1 2", "{\"a\":1,}"})
    EXPECT_FALSE(parse_json(text).ok()) << text;
}

TEST(Json, LimitsAreNamed) {
  const JsonLimits few{.depth_max = 2, .values_max = 5, .keys_max = 4, .object_keys_max = 3};
  EXPECT_TRUE(parse_json("[[1,2,3]]", few).ok());
  EXPECT_NE(parse_json("[[[1]]]", few).error().message.find("deeper than 2"), std::string::npos);
  EXPECT_NE(parse_json("[1,2,3,4,5]", few).error().message.find("5 values"), std::string::npos);
  EXPECT_NE(parse_json(object_of(4), few).error().message.find("3 keys in one"), std::string::npos);
  EXPECT_NE(parse_json(R"([{"a":1,"a":1,"a":1}])", {.keys_max = 2}).error().message.find("2 keys"),
            std::string::npos);
  const JsonLimits small{.large_max = 3};
  EXPECT_TRUE(parse_json(R"([1,2,3,4,"a","b"])", small).ok());
  for (const char* text : {R"(["a","b","c"])", "[[],[],[]]", "[{},{},{}]"})
    EXPECT_NE(parse_json(text, small).error().message.find("3 strings, lists and objects"),
              std::string::npos);
}

TEST(Json, BytesOfTextAreCounted) {
  EXPECT_EQ(json_text_bytes(parse_json(R"({"ab":["c",{"d":"efg"}],"h":1})").value()), 8u);
  EXPECT_EQ(json_text_bytes(Json()), 0u);
}

// Quadratic insertion took 15 s for this one.
TEST(Json, AnObjectOfManyKeysIsReadInLinearTime) {
  const std::string text = object_of(200'000);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(text).value().size(), 200'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
  EXPECT_FALSE(parse_json(text, kRequestJson).ok());
}

}  // namespace
}  // namespace quire
