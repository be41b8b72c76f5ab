#include "server/dialect/responses/response_store.h"

#include <gtest/gtest.h>

#include "kv/tier/faulty_files.h"

namespace quire::responses {
namespace {

class ResponseStoreTest : public ::testing::Test {
 protected:
  std::shared_ptr<ResponseStore> open(std::uint32_t count, std::uint64_t bytes, bool folder) {
    auto store = ResponseStore::open({.count_max = count,
                                      .bytes_max = bytes,
                                      .ttl_s = 60,
                                      .folder = folder ? "responses" : "",
                                      .files = disk_,
                                      .now_s = [this] { return now_; },
                                      .log = [this](const std::string& l) { log_.push_back(l); }});
    EXPECT_TRUE(store.ok());
    return std::move(store.value());
  }
  std::shared_ptr<ResponseStore> open(std::uint32_t count = 8) {
    return open(count, 1 << 20, false);
  }
  std::shared_ptr<ResponseStore> open_folder() { return open(8, 1 << 20, true); }
  static StoredResponse sized(std::size_t bytes) { return {.json = std::string(bytes, 'x')}; }

  std::int64_t now_ = 1000;
  std::shared_ptr<FaultyFiles> disk_ = std::make_shared<FaultyFiles>();
  std::vector<std::string> log_;
};

TEST_F(ResponseStoreTest, ATenantFindsItsOwnOnly) {
  auto store = open();
  EXPECT_TRUE(store->put("a", "resp_1", {.json = "{}"}));
  ASSERT_NE(store->find("a", "resp_1"), nullptr);
  EXPECT_EQ(store->find("a", "resp_1")->json, "{}");
  EXPECT_EQ(store->find("b", "resp_1"), nullptr);
  EXPECT_EQ(store->find("a", "resp_2"), nullptr);
  EXPECT_FALSE(store->remove("b", "resp_1"));
  bool gone = false;
  EXPECT_TRUE(store->remove("a", "resp_1", [&] { gone = true; }));
  EXPECT_TRUE(gone);
  EXPECT_EQ(store->find("a", "resp_1"), nullptr);
  EXPECT_EQ(store->bytes(), 0u);
}

TEST_F(ResponseStoreTest, ResponsesExpire) {
  auto store = open();
  store->put("", "resp_1", sized(1));
  now_ += 59;
  store->put("", "resp_2", sized(1));
  EXPECT_NE(store->find("", "resp_1"), nullptr);
  now_ += 1;
  EXPECT_EQ(store->find("", "resp_1"), nullptr);
  EXPECT_NE(store->find("", "resp_2"), nullptr);
  EXPECT_EQ(store->count(), 1u);
}

TEST_F(ResponseStoreTest, TheLeastRecentlyUsedGoesFirst) {
  auto store = open(3);
  for (const char* id : {"1", "2", "3"}) store->put("", id, sized(1));
  store->find("", "1");
  store->put("", "4", sized(1));
  EXPECT_EQ(store->find("", "2"), nullptr);
  for (const char* id : {"1", "3", "4"}) EXPECT_NE(store->find("", id), nullptr) << id;
}

TEST_F(ResponseStoreTest, BytesAreBoundedAndOneResponseCannotTakeThemAll) {
  auto store = open(1000, 64 << 10, false);
  EXPECT_FALSE(store->put("", "large", sized(9 << 10)));
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(store->put("", std::to_string(i), sized(4 << 10)));
    EXPECT_LE(store->bytes(), std::uint64_t{64} << 10);
  }
  EXPECT_NE(store->find("", "99"), nullptr);
  EXPECT_GT(store->count(), 10u);
  EXPECT_TRUE(store->put("", "99", sized(1)));  // replaced, not added
  EXPECT_EQ(store->find("", "99")->json.size(), 1u);
  auto none = open(0);
  EXPECT_FALSE(none->put("", "1", sized(1)));
}

TEST_F(ResponseStoreTest, ATenantDoesNotPushOutTheShareOfAnother) {
  auto store = open(8);
  for (int i = 0; i < 4; ++i) store->put("quiet", std::to_string(i), sized(1));
  for (int i = 0; i < 100; ++i) store->put("loud", std::to_string(i), sized(1));
  for (int i = 0; i < 4; ++i) EXPECT_NE(store->find("quiet", std::to_string(i)), nullptr);
  EXPECT_EQ(store->count(), 8u);
  // One who has more than a share gives way to a newcomer.
  store->put("new", "1", sized(1));
  EXPECT_NE(store->find("new", "1"), nullptr);
}

TEST_F(ResponseStoreTest, AFolderCarriesThemOverARestart) {
  {
    auto store = open_folder();
    store->put("a", "resp_1", {.json = "{\"a\":1}"});
    store->put("b", "resp_1", sized(10));
    store->put("a", "resp_2", sized(20));
    bool gone = false;
    store->remove("a", "resp_2", [&] { gone = true; });
    store->flush();
    EXPECT_TRUE(gone);
  }
  EXPECT_EQ(disk_->paths().size(), 2u);
  now_ += 30;
  {
    auto store = open_folder();
    ASSERT_NE(store->find("a", "resp_1"), nullptr);
    EXPECT_EQ(store->find("a", "resp_1")->json, "{\"a\":1}");
    EXPECT_NE(store->find("b", "resp_1"), nullptr);
    EXPECT_EQ(store->find("a", "resp_2"), nullptr);
  }
  now_ += 30;  // they expire as they would have
  EXPECT_EQ(open_folder()->count(), 0u);
  EXPECT_TRUE(disk_->paths().empty());
  EXPECT_TRUE(log_.empty());
}

TEST_F(ResponseStoreTest, WhatIsTooMuchAfterARestartGoesFromTheFolderToo) {
  {
    auto store = open_folder();
    for (int i = 0; i < 8; ++i) store->put("", std::to_string(i), sized(1));
  }
  EXPECT_EQ(disk_->paths().size(), 8u);
  { EXPECT_EQ(open(3, 1 << 20, true)->count(), 3u); }
  EXPECT_EQ(disk_->paths().size(), 3u);
}

TEST_F(ResponseStoreTest, ADamagedFileIsNotFound) {
  std::string whole;
  {
    auto store = open_folder();
    store->put("a", "resp_1", {.json = "{}"});
  }
  ASSERT_EQ(disk_->paths().size(), 1u);
  const std::string path = disk_->paths().front();
  whole = disk_->content(path);
  for (std::size_t i = 0; i <= whole.size(); ++i) {
    std::string damaged = whole;
    if (i < whole.size())
      damaged[i] = static_cast<char>(damaged[i] ^ 1);
    else
      damaged.pop_back();
    ASSERT_TRUE(disk_->write_whole(path, damaged, false).ok());
    log_.clear();
    auto store = open_folder();
    EXPECT_EQ(store->find("a", "resp_1"), nullptr) << i;
    EXPECT_EQ(log_.size(), 1u);
    EXPECT_TRUE(disk_->paths().empty());
  }
  // Another tenant's name does not make it that tenant's.
  ASSERT_TRUE(
      disk_->write_whole("responses/" + response_file_name("b", "resp_1"), whole, false).ok());
  EXPECT_EQ(open_folder()->count(), 0u);
}

TEST_F(ResponseStoreTest, AFolderThatFailsCostsTheCopyOnly) {
  auto store = open_folder();
  disk_->fail_writes(ENOSPC);
  for (int i = 0; i < 5; ++i) store->put("", std::to_string(i), sized(1));
  store->flush();
  EXPECT_EQ(log_.size(), 1u);  // not five times
  for (int i = 0; i < 5; ++i) EXPECT_NE(store->find("", std::to_string(i)), nullptr);
}

}  // namespace
}  // namespace quire::responses
