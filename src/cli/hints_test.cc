#include "cli/hints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Machine {
  std::string root = testing::TempDir() + "/quire_hints";
  explicit Machine(const std::string& huge, const std::string& cpu) {
    std::filesystem::create_directories(root + "/sys/kernel/mm/transparent_hugepage");
    std::filesystem::create_directories(root + "/sys/fs/cgroup");
    std::ofstream(root + "/sys/kernel/mm/transparent_hugepage/enabled") << huge;
    std::ofstream(root + "/sys/fs/cgroup/cpu.max") << cpu;
  }
};

TEST(MachineHints, NothingWhereNothingIsInTheWay) {
  const Machine m("always [madvise] never\n", "max 100000\n");
  EXPECT_THAT(machine_hints(0, 8, m.root), IsEmpty());
  EXPECT_THAT(machine_hints(4, 8, m.root + "/none"), IsEmpty());
}

TEST(MachineHints, HugePagesThatAreOff) {
  const Machine m("always madvise [never]\n", "max 100000\n");
  EXPECT_THAT(machine_hints(0, 8, m.root), ElementsAre(HasSubstr("echo madvise")));
}

TEST(MachineHints, ThreadsThatMayNotRun) {
  const Machine m("[always]\n", "250000 100000\n");
  EXPECT_THAT(machine_hints(0, 8, m.root), ElementsAre(HasSubstr("--threads 2 ")));
  EXPECT_THAT(machine_hints(2, 8, m.root), IsEmpty());
  EXPECT_THAT(machine_hints(9, 8, m.root + "/none"),
              ElementsAre(HasSubstr("9 threads on 8 cores")));
}

}  // namespace
}  // namespace quire::cli
