#include "tensor/gguf_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "tensor/gguf.h"
#include "tensor/gguf_writer.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GgufParts : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (std::uint32_t i = 0; i < 3; ++i) write(i, part(i));
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Claims {
    std::uint32_t no, count = 3, tensors = 4;
    std::vector<std::string> names;
  };
  // Part 0 has the keys and one tensor, part 1 none, part 2 three.
  static Claims part(std::uint32_t i) {
    Claims claims{.no = i, .names = {}};
    if (i == 0) claims.names = {"m"};
    if (i == 2) claims.names = {"a", "n", "z"};
    return claims;
  }
  std::string path(std::uint32_t i) const { return folder_ + fmt_name(i); }
  static std::string fmt_name(std::uint32_t i) {
    return "/tiny-0000" + std::to_string(i + 1) + "-of-00003.gguf";
  }
  void write(std::uint32_t i, const Claims& claims) const {
    GgufWriter w;
    if (i == 0) w.add("general.architecture", "llama");
    w.add_u32("split.no", claims.no);
    w.add_u32("split.count", claims.count);
    w.add_u32("split.tensors.count", claims.tensors);
    for (const std::string& name : claims.names) {
      const std::vector<std::byte> bytes(16, std::byte{static_cast<std::uint8_t>(name[0])});
      const std::uint64_t shape[] = {4};
      w.add_tensor(name, DType::f32, shape, bytes);
    }
    ASSERT_TRUE(write_file(path(i), w.finish()).ok());
  }
  std::string error() const {
    const auto file = GgufFile::open(path(0));
    return file.ok() ? "" : file.error().message;
  }

  const std::string folder_ = ::testing::TempDir() + "quire_parts";
};

TEST_F(GgufParts, AnyOfThemOpensAll) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto opened = GgufFile::open(path(i));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const GgufFile& file = opened.value();
    EXPECT_EQ(file.parts(), 3u);
    EXPECT_EQ(file.name(), path(0));
    EXPECT_EQ(file.string_of("general.architecture").value(), "llama");
    ASSERT_EQ(file.tensors().size(), 4u);
    ASSERT_EQ(file.files().size(), 3u);
    for (const char* name : {"a", "m", "n", "z"}) {
      ASSERT_NE(file.find(name), nullptr);
      EXPECT_EQ(file.find(name)->data[15], static_cast<std::byte>(name[0]));
      EXPECT_TRUE(file.files()[*name == 'm' ? 0 : 2].holds(file.find(name)->data));
    }
  }
}

TEST_F(GgufParts, AMissingOneIsNamed) {
  fs::remove(path(1));
  EXPECT_THAT(error(), HasSubstr("tiny-00002-of-00003.gguf: cannot open"));
  EXPECT_THAT(error(), HasSubstr("part 2 of 3"));
}

TEST_F(GgufParts, PartsThatDoNotBelongTogetherAreRefused) {
  write(1, part(2));
  EXPECT_THAT(error(), HasSubstr("says that it is part 3 of 3, and its name says 2 of 3"));
  write(1, {.no = 1, .count = 4, .names = {}});
  EXPECT_THAT(error(), HasSubstr("part 2 of 4"));
  write(1, {.no = 1, .names = {"z"}});
  EXPECT_THAT(error(), HasSubstr("have 4 tensors; they have 5"));
  for (std::uint32_t i = 0; i < 3; ++i) {
    Claims claims = part(i);
    claims.tensors = 5;
    if (i == 1) claims.names = {"z"};
    write(i, claims);
  }
  EXPECT_THAT(error(),
              HasSubstr("tiny-00003-of-00003.gguf: tensor 'z' is in a part before it, too"));
}

TEST_F(GgufParts, APartUnderAnotherNameIsRefused) {
  fs::rename(path(0), folder_ + "/renamed.gguf");
  const auto file = GgufFile::open(folder_ + "/renamed.gguf");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr("-00001-of-00003.gguf"));
}

TEST_F(GgufParts, FilesAreFoundByAnyNameOfTheModel) {
  for (const std::string& name : {path(0), path(2), folder_ + "/tiny"})
    EXPECT_THAT(gguf_files(name).value(), ElementsAre(path(0), path(1), path(2)));
  EXPECT_THAT(gguf_files(folder_ + "/tin").value(), ElementsAre(folder_ + "/tin"));
  EXPECT_THAT(gguf_files(folder_).value(), ElementsAre(folder_));
  std::ofstream(folder_ + "/tiny-00001-of-00002.gguf") << "x";
  const auto two = gguf_files(folder_ + "/tiny");
  ASSERT_FALSE(two.ok());
  EXPECT_THAT(two.error().message, HasSubstr("name one of them"));
  std::ofstream(folder_ + "/tiny") << "x";  // a file of this very name is what is meant
  EXPECT_THAT(gguf_files(folder_ + "/tiny").value(), ElementsAre(folder_ + "/tiny"));
}

TEST(GgufPartNames, AreReadAndWritten) {
  const auto part = part_of("m/x-y-00002-of-00013.gguf");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->prefix, "m/x-y");
  EXPECT_EQ(part->number, 2u);
  EXPECT_EQ(part->count, 13u);
  EXPECT_EQ(part->path(3), "m/x-y-00003-of-00013.gguf");
  EXPECT_EQ(gguf_stem("m/x-y-00002-of-00013.gguf"), "x-y");
  EXPECT_EQ(gguf_stem("m/x.y.gguf"), "x.y");
  for (const char* other :
       {"x.gguf", "x-0002-of-00003.gguf", "x-00002-of-00003.bin", "x-00000-of-00003.gguf",
        "x-00004-of-00003.gguf", "m/-00001-of-00002.gguf", "x-+0001-of-00002.gguf",
        "x00001-of-00002.gguf", "x-00001-of00002.gguf"})
    EXPECT_FALSE(part_of(other)) << other;
}

}  // namespace
}  // namespace quire
