// Every planted bug must be noticed by the simulator; without one the same seeds must pass.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "kv/planted.h"
#include "sim/simulator.h"

namespace quire {
namespace {

constexpr std::uint64_t kSeeds = 24;
constexpr std::uint32_t kTurns = 1500;

// Runs the seeds in a child process, as a caught bug aborts. Returns whether all passed.
bool passes(Bug bug) {
  const pid_t child = fork();
  if (child == 0) {
    if (!std::freopen("/dev/null", "w", stderr)) _exit(0);
    planted_bug = bug;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) simulate({.seed = seed, .steps = kTurns});
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Planted, SoundBuildPasses) { EXPECT_TRUE(passes(Bug::none)); }

class PlantedBug : public ::testing::TestWithParam<int> {};

TEST_P(PlantedBug, IsCaught) { EXPECT_FALSE(passes(static_cast<Bug>(GetParam()))); }

INSTANTIATE_TEST_SUITE_P(All, PlantedBug, ::testing::Range(1, int{kKvBugCount}));

}  // namespace
}  // namespace quire
