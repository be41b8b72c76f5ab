// cli/script.h - the scripts that come with Quire (scripts/ in the sources, share/quire where it is
// installed), run for the line that they print. For what is fetched: texts.
//
//   TRY(std::string path, run_script("fetch-text", {}));    // what it says of its work goes to stderr
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace quire::cli {

Result<std::string> run_script(const std::string& name, const std::vector<std::string>& arguments);

}  // namespace quire::cli
