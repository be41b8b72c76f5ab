#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace quire {
namespace {

class Files : public testing::Test {
 protected:
  void write(std::string_view text, std::ios::openmode mode = std::ios::trunc) const {
    std::ofstream(path_, std::ios::binary | mode) << text;
  }
  // As if it had been written a while ago, and not within the clock's tick of what comes next.
  void age() const {
    namespace fs = std::filesystem;
    fs::last_write_time(path_, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = testing::TempDir() + "quire_file_test_" + std::to_string(::getpid());
};

TEST_F(Files, DetachedPartsAreReadAnew) {
  write("0123456789");
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.ok());
  const auto part = file.value().bytes().subspan(3, 4);
  file.value().detach();
  EXPECT_EQ(file.value().bytes().size(), 10u);
  const auto read = file.value().read(part);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read.value().data()), 4), "3456");
}

TEST_F(Files, WhatBecomesOfTheFileCannotReachWhoDetached) {
  write(std::string(10'000, 'a'));
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.ok());
  const auto part = file.value().bytes().subspan(8'000, 100);
  file.value().detach();
  std::filesystem::resize_file(path_, 5);
  const auto read = file.value().read(part);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("has changed"), std::string::npos);
  EXPECT_DEATH(
      {
        [[maybe_unused]] const volatile std::byte b = part[0];
        std::_Exit(0);
      },
      "");
}

TEST_F(Files, AFileThatWasTakenAwayCanStillBeRead) {
  write("0123456789");
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.ok());
  file.value().detach();
  std::filesystem::remove(path_);
  EXPECT_TRUE(file.value().read(file.value().bytes()).ok());
}

TEST_F(Files, AStampTellsEveryKindOfChange) {
  write("0123456789");
  age();
  const auto file = MappedFile::open(path_);
  ASSERT_TRUE(file.ok());
  const auto same = [&] {
    const auto now = FileStamp::of(path_);
    return now.ok() && now.value() == file.value().stamp();
  };
  EXPECT_TRUE(same());
  write("9876543210");  // as long as before
  EXPECT_FALSE(same());
  write("0123456789");
  age();
  const auto again = MappedFile::open(path_);
  ASSERT_TRUE(again.ok());
  const std::string other = path_ + ".new";
  std::filesystem::copy_file(path_, other);
  std::filesystem::last_write_time(other, std::filesystem::last_write_time(path_));
  std::filesystem::rename(other, path_);
  EXPECT_NE(FileStamp::of(path_).value(), again.value().stamp());  // another file of the same age
  std::filesystem::remove(path_);
  EXPECT_FALSE(FileStamp::of(path_).ok());
}

}  // namespace
}  // namespace quire
