// cli/script.h - runs a script that comes with Quire (scripts/ in the sources, share/quire when
// installed) and returns the line that it prints. Used to fetch texts.
//
//   TRY(std::string path, run_script("fetch-text", {}));    // its messages go to stderr
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace quire::cli {

Result<std::string> run_script(const std::string& name, const std::vector<std::string>& arguments);

}  // namespace quire::cli
