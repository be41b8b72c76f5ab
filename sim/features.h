// sim/features.h - what a simulation has seen, and how often. A feature that was never seen was not
// tested: the simulator fails then.
//
//   Features seen;
//   ++seen["n"];
//   print_features(seen);
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace quire {

using Features = std::map<std::string, std::uint64_t, std::less<>>;

// A table of all features that there are. Returns how many were never seen.
std::uint32_t print_features(const Features& seen);

}  // namespace quire
