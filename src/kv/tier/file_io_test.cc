#include "kv/tier/file_io.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "base/random.h"
#include "kv/tier/faulty_files.h"

namespace quire {
namespace {

std::unique_ptr<Files> make_files(const std::string& way) {
  if (way == "memory") return std::make_unique<FaultyFiles>();
  return system_files(way == "threads" ? SystemFiles::threads : SystemFiles::best);
}

class FilesTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    files_ = make_files(GetParam());
    if (GetParam() == "io_uring" && files_->way() != "io_uring")
      GTEST_SKIP() << "io_uring is not available here";
    std::string name = (std::filesystem::temp_directory_path() / "quire-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    ASSERT_TRUE(files_->make_folder(folder_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Files> files_;
  std::string folder_;
};

TEST_P(FilesTest, ABatchWritesAndReadsManyPlaces) {
  const auto file = files_->open(folder_ + "/a", OpenFor::writing);
  ASSERT_TRUE(file.ok());
  constexpr std::size_t kPieces = 300, kPiece = 2 * kFileAlign;
  AlignedBuffer from(kPieces * kPiece), to(kPieces * kPiece);
  Random random(1);
  for (std::byte& b : from.span()) b = static_cast<std::byte>(random.next());
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < kPieces; ++i)
    requests.push_back({.file = file.value(),
                        .write = true,
                        .at = i * kPiece,
                        .bytes = from.span().subspan(i * kPiece, kPiece)});
  std::size_t ends = 0;
  transfer(*files_, requests, [&](std::size_t) { ++ends; });
  EXPECT_EQ(ends, kPieces);
  ASSERT_TRUE(files_->sync(file.value()).ok());
  for (std::size_t i = 0; i < kPieces; ++i) {
    EXPECT_EQ(requests[i].error, 0);
    requests[i].write = false;
    requests[i].bytes = to.span().subspan(i * kPiece, kPiece);
  }
  transfer(*files_, requests, [](std::size_t) {});
  EXPECT_TRUE(std::ranges::equal(from.span(), to.span()));
  // Beyond the end: what is there, and no error.
  IoRequest beyond{.file = file.value(), .at = (kPieces - 1) * kPiece, .bytes = to.span()};
  transfer(*files_, {&beyond, 1}, [](std::size_t) {});
  EXPECT_EQ(beyond.error, 0);
  EXPECT_EQ(beyond.done, kPiece);
  files_->close(file.value());
}

TEST_P(FilesTest, WholeFilesAreReplaced) {
  const std::string path = folder_ + "/small";
  EXPECT_EQ(files_->read_whole(path).error().code, Code::not_found);
  ASSERT_TRUE(files_->write_whole(path, "one", true).ok());
  ASSERT_TRUE(files_->write_whole(path, "second", false).ok());
  EXPECT_EQ(files_->read_whole(path).value(), "second");
  const auto entries = files_->list(folder_);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries.value().size(), 1u);
  EXPECT_EQ(entries.value()[0].name, "small");
  EXPECT_EQ(entries.value()[0].bytes, 6u);
  EXPECT_TRUE(files_->remove(path).ok());
  EXPECT_EQ(files_->remove(path).error().code, Code::not_found);
}

TEST_P(FilesTest, ALockIsHeldOnce) {
  const auto lock = files_->lock(folder_ + "/lock");
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(files_->lock(folder_ + "/lock").error().code, Code::exhausted);
  files_->close(lock.value());
  EXPECT_TRUE(files_->lock(folder_ + "/lock").ok());
}

TEST_P(FilesTest, ABadDescriptorIsAnErrorOfItsRequestAlone) {
  if (GetParam() == "memory") return;
  ASSERT_TRUE(files_->write_whole(folder_ + "/a", std::string(kFileAlign, 'a'), false).ok());
  const auto good = files_->open(folder_ + "/a", OpenFor::reading);
  const auto closed = files_->open(folder_ + "/a", OpenFor::reading);
  ASSERT_TRUE(good.ok() && closed.ok());
  files_->close(closed.value());
  AlignedBuffer to(2 * kFileAlign);
  IoRequest requests[] = {
      {.file = closed.value(), .bytes = to.span().first(kFileAlign)},
      {.file = good.value(), .bytes = to.span().subspan(kFileAlign)},
  };
  transfer(*files_, requests, [](std::size_t) {});
  EXPECT_EQ(requests[0].error, EBADF);
  EXPECT_EQ(requests[1].error, 0);
  EXPECT_EQ(to.span()[kFileAlign], std::byte{'a'});
}

TEST_P(FilesTest, LinksAreNotFollowed) {
  if (GetParam() == "memory") return;
  std::filesystem::create_symlink("/etc/hostname", folder_ + "/link");
  EXPECT_FALSE(files_->open(folder_ + "/link", OpenFor::writing).ok());
  EXPECT_FALSE(files_->read_whole(folder_ + "/link").ok());
}

TEST_P(FilesTest, PipesAreNotWaitedFor) {
  if (GetParam() == "memory") return;
  ASSERT_EQ(::mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(files_->open(folder_ + "/pipe", OpenFor::reading).ok());
  EXPECT_FALSE(files_->open(folder_ + "/pipe", OpenFor::writing).ok());
  EXPECT_FALSE(files_->read_whole(folder_ + "/pipe").ok());
  EXPECT_FALSE(files_->lock(folder_ + "/pipe").ok());
}

INSTANTIATE_TEST_SUITE_P(All, FilesTest, testing::Values("io_uring", "threads", "memory"));

TEST(Transfer, GivesUpWhenNothingMoves) {
  FaultyFiles disk;
  disk.plan.interrupt_chance = 1;
  const auto file = disk.open("a", OpenFor::writing);
  AlignedBuffer bytes(kFileAlign);
  IoRequest write{.file = file.value(), .write = true, .bytes = bytes.span()};
  std::size_t ends = 0;
  transfer(disk, {&write, 1}, [&](std::size_t) { ++ends; });
  EXPECT_EQ(ends, 1u);
  EXPECT_EQ(write.error, EINTR);
}

}  // namespace
}  // namespace quire
