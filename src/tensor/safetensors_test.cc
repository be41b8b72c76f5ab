#include "tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

namespace quire {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string file_of(std::string_view header, std::size_t data_bytes) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data_bytes, '\1');
}

std::string error_of(const std::string& file) {
  const auto parsed = SafetensorsFile::parse(std::as_bytes(std::span(file)), "m.safetensors");
  return parsed.ok() ? "" : parsed.error().message;
}

constexpr std::string_view kGood =
    R"({"__metadata__":{"format":"pt","note":{"any":["thing",1,null]}},"b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},
    "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"ids":{"dtype":"I64","shape":[1],"data_offsets":[30,38]}})";

TEST(Safetensors, ReadsTypesShapesAndPlaces) {
  const std::string bytes = file_of(kGood, 38);
  const auto parsed = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "m.safetensors");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const SafetensorsFile& file = parsed.value();
  const TensorView& a = *file.tensor("a").value();
  EXPECT_EQ(a.type, DType::f32);
  EXPECT_EQ(a.shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(a.data.size(), 24u);
  EXPECT_EQ(file.tensor("b").value()->data.data(), a.data.data() + 24);
  EXPECT_TRUE(file.has("ids"));
  EXPECT_THAT(file.tensor("ids").error().message, HasSubstr("'ids' is of type 'I64'"));
  EXPECT_EQ(file.tensor("ids").error().code, Code::unsupported);
  EXPECT_THAT(file.tensor("c").error().message, HasSubstr("'c' is missing"));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = file_of(kGood, 38);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
    ASSERT_FALSE(SafetensorsFile::parse(std::as_bytes(std::span(cut)), "m").ok()) << "cut at " << n;
  }
}

TEST(Safetensors, BadHeadersNameTheTensor) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "not an object"},
      {"{\"a\":", "not JSON"},
      {R"({"a":3})", "'a' is a number, not an object"},
      {R"({"a":[]})", "'a' is a list, not an object"},
      {R"({"a":{}})", "'a' has no 'dtype'"},
      {R"({"a":{"dtype":"F32"}})", "'a' has no 'shape'"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "'a' has no two 'data_offsets'"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "'a' has more than two"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
       "'a': 'shape' may not be a negative number"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})",
       "'a': 'shape' may not be a list"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", "'a': 'dtype' may not be a number"},
      {R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", "'a' has a dimension of 0"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       "'a' of type F32 and shape [2] has 4 bytes, 8 are needed"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
       "'a' has an impossible shape"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", "'a' lies at 8 to 4"},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
       "'a' lies at 0 to 16 of 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})",
       "'a' lies at"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}})",
       "'b' overlaps"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "'a' appears twice"},
      {R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "name of 0 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})",
       "'a' has more than 8 dimensions"},
  };
  for (const auto& [header, message] : cases)
    EXPECT_THAT(error_of(file_of(header, 8)), HasSubstr(message)) << header;
  std::string lying = file_of("{}", 8);
  std::memset(lying.data(), 0xff, 8);
  EXPECT_THAT(error_of(lying), HasSubstr("claims a header of 18446744073709551615 bytes"));
}

TEST(Safetensors, OtherTypesAreThereAsBytes) {
  const std::string bytes = file_of(
      R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
      R"("c":{"dtype":"I32","shape":[0],"data_offsets":[8,8]},"d":{"dtype":"F4","shape":[9],"data_offsets":[12,13]}})",
      13);
  const auto parsed = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "f");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const SafetensorsFile& file = parsed.value();
  EXPECT_EQ(file.raw("a")->type, "I32");
  EXPECT_EQ(file.raw("a")->data.size(), 8u);
  EXPECT_EQ(file.raw("b")->type, "F16");
  EXPECT_TRUE(file.raw("c")->data.empty());
  EXPECT_EQ(file.raw("d")->data.size(), 1u);  // nobody knows how much it should have
  EXPECT_FALSE(file.raw("e"));
  EXPECT_THAT(file.tensor("a").error().message, HasSubstr("'a' is of type"));
  EXPECT_THAT(error_of(file_of(R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,4]}})", 4)),
              HasSubstr("of type I32 and shape [2] has 4 bytes, 8 are needed"));
}

TEST(Safetensors, IndexNamesPlainFilesOnly) {
  const auto shards = shards_of_index(
      R"({"metadata":{"total_size":9},"weight_map":{"b":"two.safetensors","a":"one.safetensors","c":"one.safetensors"}})",
      "i");
  ASSERT_TRUE(shards.ok()) << shards.error().message;
  EXPECT_EQ(shards.value(), (std::vector<std::string>{"one.safetensors", "two.safetensors"}));
  for (const char* bad :
       {"../x.safetensors", "/etc/x.safetensors", ".x.safetensors", "x.bin", ""}) {
    const auto refused =
        shards_of_index(R"({"weight_map":{"a":")" + std::string(bad) + "\"}}", "i");
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.error().message, HasSubstr("for tensor 'a'"));
  }
  EXPECT_THAT(shards_of_index("{}", "i").error().message, HasSubstr("'weight_map' is missing"));
  EXPECT_THAT(shards_of_index(R"({"weight_map":{"a":7}})", "i").error().message,
              HasSubstr("a number for tensor 'a'"));
}

class Folder {
 public:
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(write_file((path / name).string(), bytes).ok());
  }
  const fs::path path = fs::path(::testing::TempDir()) / "quire_safetensors_test";
};

TEST(Safetensors, ShardsFormOneModel) {
  const std::string one = file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  const std::string two = file_of(R"({"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2);
  Folder folder;
  EXPECT_THAT(SafetensorsFolder::open(folder.path.string()).error().message,
              HasSubstr("model.safetensors: cannot open"));
  folder.write("model.safetensors", one);
  EXPECT_TRUE(SafetensorsFolder::open(folder.path.string()).value().has("a"));

  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_THAT(SafetensorsFolder::open(folder.path.string()).error().message,
              HasSubstr("one.safetensors: cannot open"));
  folder.write("one.safetensors", one);
  folder.write("two.safetensors", two);
  const auto opened = SafetensorsFolder::open(folder.path.string());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(opened.value().tensor("a").value()->type, DType::f32);
  EXPECT_EQ(opened.value().tensor("b").value()->type, DType::f16);
  opened.value().drop_pages(opened.value().tensor("a").value()->data);
  EXPECT_EQ(opened.value().tensor("a").value()->data[0], std::byte{1});

  folder.write("two.safetensors", one);
  EXPECT_THAT(SafetensorsFolder::open(folder.path.string()).error().message,
              HasSubstr("tensor 'a' is in"));
}

}  // namespace
}  // namespace quire
