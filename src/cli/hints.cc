#include "cli/hints.h"

#include <fmt/core.h>

#include <cmath>
#include <sstream>

#include "base/file.h"

namespace quire::cli {

std::vector<std::string> machine_hints(std::uint32_t threads, std::uint32_t cores,
                                       const std::string& root) {
  std::vector<std::string> hints;
  const std::uint32_t used = threads ? threads : cores;
  const auto huge = read_file(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  if (huge.ok() && huge.value().find("[never]") != std::string::npos)
    hints.push_back(
        "huge pages are off, so weights are read more slowly; as root: "
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  if (const auto limit = read_file(root + "/sys/fs/cgroup/cpu.max"); limit.ok()) {
    double quota = 0, period = 0;  // "200000 100000", or "max 100000"
    if (std::istringstream(limit.value()) >> quota >> period && period > 0 &&
        quota < period * used) {
      const double may = quota / period;
      hints.push_back(
          fmt::format("this container may use {:.3g} cores and {} threads compute: "
                      "--threads {} avoids that they are held up in the middle of a step",
                      may, used, std::max(1, static_cast<int>(std::floor(may)))));
    }
  }
  if (used > cores)
    hints.push_back(fmt::format("{} threads on {} cores wait for each other; leave --threads out",
                                used, cores));
  return hints;
}

}  // namespace quire::cli
