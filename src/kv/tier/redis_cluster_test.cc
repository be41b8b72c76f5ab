// Blocks through a real Redis Cluster of three masters, which the test starts and ends. Skipped where
// redis-server is not installed.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "kv/tier/redis_store.h"
#include "kv/tier/store_tier.h"
#include "kv/tier/tier_testing.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

// A port that is free now, as is the one 10,000 above it, where nodes talk to each other.
std::uint16_t free_port() {
  while (true) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0), bus = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0;
    const std::uint16_t port = ntohs(at.sin_port);
    at.sin_port = htons(static_cast<std::uint16_t>(port + 10000));
    const bool usable =
        bound && port < 55000 && ::bind(bus, reinterpret_cast<sockaddr*>(&at), size) == 0;
    ::close(fd);
    ::close(bus);
    if (usable) return port;
  }
}

pid_t start(const std::vector<std::string>& words, const std::string& log) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(out, 1);
  ::dup2(out, 2);
  std::vector<char*> arguments;
  for (const std::string& w : words) arguments.push_back(const_cast<char*>(w.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

int run(const std::vector<std::string>& words, const std::string& log) {
  int status = 0;
  ::waitpid(start(words, log), &status, 0);
  return status;
}

class RedisCluster : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (::system("command -v redis-server redis-cli >/dev/null 2>&1") != 0) return;
    char name[] = "/tmp/quire-redis-XXXXXX";
    folder_ = ::mkdtemp(name);
    std::vector<std::string> create = {"redis-cli", "--cluster", "create"};
    for (int i = 0; i < 3; ++i) {
      const std::uint16_t port = free_port();
      const std::string home = fmt::format("{}/{}", folder_, i);
      std::filesystem::create_directory(home);
      nodes_.push_back(
          start({"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--dir",
                 home, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                 "--cluster-require-full-coverage", "no", "--save", "", "--appendonly", "no"},
                home + "/log"));
      ports_.push_back(port);
      create.push_back(fmt::format("127.0.0.1:{}", port));
    }
    create.push_back("--cluster-yes");
    const std::string log = folder_ + "/log";
    for (const std::uint16_t port : ports_)
      for (int i = 0; i < 100 && run({"redis-cli", "-p", std::to_string(port), "ping"}, log); ++i)
        std::this_thread::sleep_for(milliseconds(50));
    ready_ = run(create, log) == 0;
    // A node refuses requests until it has heard of all slots, a little after the cluster was made.
    for (const std::uint16_t port : ports_) {
      const std::string ok =
          fmt::format("redis-cli -p {} cluster info | grep -q cluster_state:ok", port);
      for (int i = 0; i < 200 && run({"sh", "-c", ok}, log); ++i)
        std::this_thread::sleep_for(milliseconds(50));
    }
  }
  static void TearDownTestSuite() {
    for (const pid_t pid : nodes_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  void SetUp() override {
    if (folder_.empty()) GTEST_SKIP() << "redis-server is not installed";
    ASSERT_TRUE(ready_) << "the cluster did not form";
  }

  // Waits longer than a server would: the machine of a test is busy.
  std::unique_ptr<StoreTier> tier(std::uint32_t patience_ms = 2000) {
    return std::make_unique<StoreTier>(StoreTierOptions{
        .open = [patience_ms]() -> Result<std::unique_ptr<ValueStore>> {
          TRY(RedisPlace place, parse_redis_url(fmt::format("redis://127.0.0.1:{}?patience={}",
                                                            ports_[0], patience_ms)));
          return open_redis_store(std::move(place));
        },
        .secret = secret_,
        .mailbox = &mailbox_,
        .breaker = {.failures_max = 3, .wait_first = 50'000'000, .wait_max = 50'000'000}});
  }
  TierUser user(StoreTier& of) {
    return TierUser(of, mailbox_,
                    [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
  }

  static inline std::string folder_;
  static inline std::vector<pid_t> nodes_;
  static inline std::vector<std::uint16_t> ports_;
  static inline bool ready_ = false;
  const DeploymentSecret secret_ = DeploymentSecret::random();
  Mailbox mailbox_;
};

TEST_F(RedisCluster, BlocksComeBackFromAllNodes) {
  auto one = tier(), two = tier();
  TierUser writer = user(*one), reader = user(*two);
  for (std::uint64_t i = 0; i < 60; ++i) ASSERT_EQ(writer.write(i, "acme"), TierOutcome::ok) << i;
  for (std::uint64_t i = 0; i < 60; ++i) ASSERT_EQ(reader.read(i, "acme"), TierOutcome::ok) << i;
  EXPECT_EQ(reader.read(1000, "acme"), TierOutcome::absent);
  EXPECT_EQ(writer.write(3, "acme"), TierOutcome::already);
}

TEST_F(RedisCluster, AValueOfSomebodyElseIsAMiss) {
  auto t = tier();
  TierUser u = user(*t);
  const std::string key = "quire:" + TestBlock(500).name().hex();
  ASSERT_EQ(run({"redis-cli", "-c", "-p", std::to_string(ports_[0]), "set", key, "garbage"},
                folder_ + "/log"),
            0);
  EXPECT_EQ(u.read(500), TierOutcome::corrupt);
  EXPECT_EQ(u.read(500), TierOutcome::absent);  // it was erased
}

// A node that hangs costs the patience a few times; then nobody asks it, and it comes back by itself.
TEST_F(RedisCluster, ANodeThatHangsIsNotWaitedForAgainAndAgain) {
  auto t = tier(50);
  TierUser u = user(*t);
  for (std::uint64_t i = 100; i < 130; ++i) (void)u.write(i);
  ::kill(nodes_[1], SIGSTOP);
  const auto began = std::chrono::steady_clock::now();
  for (int round = 0; round < 20; ++round)
    for (std::uint64_t i = 100; i < 130; ++i)
      if (u.read(i) == TierOutcome::failed) break;
  const auto took = std::chrono::steady_clock::now() - began;
  ::kill(nodes_[1], SIGCONT);
  EXPECT_LT(took, std::chrono::seconds(20));  // 600 reads that wait 50 ms each would take 30
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto again = tier();
  TierUser v = user(*again);
  while (v.write(140) == TierOutcome::failed) ASSERT_LT(std::chrono::steady_clock::now(), end);
  while (v.read(140) != TierOutcome::ok) ASSERT_LT(std::chrono::steady_clock::now(), end);
}

}  // namespace
}  // namespace quire
