// cli/hints.h - what about this machine makes answers slower than they could be, and what would help.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire::cli {

// Empty where nothing is known to be in the way. `root`: where /sys is looked for; tests have another.
// `threads` 0: as many as there are cores.
std::vector<std::string> machine_hints(std::uint32_t threads, std::uint32_t cores,
                                       const std::string& root = "");

}  // namespace quire::cli
