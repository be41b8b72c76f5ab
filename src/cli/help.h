// cli/help.h - what `--help` looks like: one screen, examples included; `--help-all` adds the
// options of kRare.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace quire::cli {

inline constexpr const char* kRare = "Rarely needed";  // a group of options

// Reads the command line of one command and runs it. What cannot be read is an error with a hint.
int run_command(const Command& command, int argc, char** argv);

}  // namespace quire::cli
