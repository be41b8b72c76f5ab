// Every planted bug, of the cache and of the engine, must be noticed by the engine's simulator; without
// one the same worlds pass.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "kv/planted.h"
#include "sim/engine_sim.h"

namespace quire {
namespace {

constexpr std::uint64_t kWorlds = 160;

// Runs worlds in a child process, as a caught bug aborts. Returns whether all passed.
bool passes(Bug bug) {
  const pid_t child = fork();
  if (child == 0) {
    if (!std::freopen("/dev/null", "w", stderr)) _exit(0);
    planted_bug = bug;
    for (std::uint64_t seed = 0; seed < kWorlds; ++seed)
      simulate_engine({.seed = seed, .steps = 300});
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(EnginePlanted, SoundBuildPasses) { EXPECT_TRUE(passes(Bug::none)); }

class EnginePlantedBug : public ::testing::TestWithParam<int> {};

TEST_P(EnginePlantedBug, IsCaught) { EXPECT_FALSE(passes(static_cast<Bug>(GetParam()))); }

// No model that the engine runs has recurrent state, so its bug is the other simulator's to find.
INSTANTIATE_TEST_SUITE_P(Cache, EnginePlantedBug,
                         ::testing::Range(1, static_cast<int>(Bug::state_not_restored)));
INSTANTIATE_TEST_SUITE_P(Engine, EnginePlantedBug,
                         ::testing::Range(int{kKvBugCount}, int{kBugCount}));

}  // namespace
}  // namespace quire
