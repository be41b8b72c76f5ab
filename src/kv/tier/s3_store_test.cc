#include "kv/tier/s3_store.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <map>

#include "base/file.h"

namespace quire {
namespace {

TEST(S3Store, AddressesAreRead) {
  const auto one = parse_s3_url("s3://some-bucket/a/b/?region=eu-west-1&patience=200");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one.value().bucket, "some-bucket");
  EXPECT_EQ(one.value().prefix, "a/b");
  EXPECT_EQ(one.value().patience, 200'000'000);
  EXPECT_EQ(s3_base_url(one.value(), {}), "https://some-bucket.s3.eu-west-1.amazonaws.com/a/b/");
  const auto dots = parse_s3_url("s3://some.bucket?region=cn-north-1");
  ASSERT_TRUE(dots.ok());
  EXPECT_EQ(s3_base_url(dots.value(), {}), "https://s3.cn-north-1.amazonaws.com.cn/some.bucket/");
  const auto own = parse_s3_url("s3://bucket/x?endpoint=http://127.0.0.1:9000/&profile=me");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own.value().profile, "me");
  EXPECT_EQ(s3_base_url(own.value(), {}), "http://127.0.0.1:9000/bucket/x/");
  for (const char* bad : {"http://a", "s3://", "s3://ab", "s3://Bucket", "s3://bucket/a b",
                          "s3://bucket/a/../b", "s3://bucket/a//b",
                          "s3://bucket?region=", "s3://bucket?endpoint=ftp://x", "s3://bucket?x=1"})
    EXPECT_FALSE(parse_s3_url(bad).ok()) << bad;
}

TEST(S3Store, SectionsOfFilesAreRead) {
  const std::string text =
      "# a comment\r\n[default]\nkey = one\n  nested = x\n[profile me]\r\nkey=two \r\nother = "
      "a=b\n[x";
  EXPECT_EQ(aws_file_section(text, "default"),
            (std::map<std::string, std::string>{{"key", "one"}}));
  EXPECT_EQ(aws_file_section(text, "profile me"),
            (std::map<std::string, std::string>{{"key", "two"}, {"other", "a=b"}}));
  EXPECT_TRUE(aws_file_section(text, "me").empty());
}

TEST(S3Store, VariablesComeBeforeFilesAndANamedProfileBeforeBoth) {
  char name[] = "/tmp/quire-aws-XXXXXX";
  const std::string home = ::mkdtemp(name);
  std::filesystem::create_directory(home + "/.aws");
  ASSERT_TRUE(write_file(home + "/.aws/credentials",
                         "[default]\naws_access_key_id=d\naws_secret_access_key=e\n"
                         "[me]\naws_access_key_id=m\naws_secret_access_key=n\n")
                  .ok());
  ASSERT_TRUE(write_file(home + "/.aws/config",
                         "[default]\nregion=r1\n[profile me]\nregion=r2\nendpoint_url=http://e\n")
                  .ok());
  std::map<std::string, std::string> variables = {{"HOME", home}};
  const Environment environment = [&](const char* n) {
    const auto found = variables.find(n);
    return found == variables.end() ? std::string() : found->second;
  };
  const auto files = read_aws_settings("", environment);
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files.value().key_id + files.value().key + files.value().region, "der1");
  variables["AWS_ACCESS_KEY_ID"] = "v";
  variables["AWS_SECRET_ACCESS_KEY"] = "w";
  variables["AWS_REGION"] = "r3";
  EXPECT_EQ(read_aws_settings("", environment).value().key_id, "v");
  EXPECT_EQ(read_aws_settings("", environment).value().region, "r3");
  const auto me = read_aws_settings("me", environment);
  ASSERT_TRUE(me.ok());
  EXPECT_EQ(me.value().key_id + me.value().key + me.value().endpoint, "mnhttp://e");
  EXPECT_FALSE(read_aws_settings("nobody", environment).ok());
  variables = {{"HOME", "/nowhere"}};
  EXPECT_FALSE(read_aws_settings("", environment).ok());
  std::filesystem::remove_all(home);
}

}  // namespace
}  // namespace quire
