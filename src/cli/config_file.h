// cli/config_file.h - options of a command from a TOML file (`--config quire.toml`).
//
//   kv-format = "int8"              # --kv-format int8, for every command that reads the file
//   [serve]                         # for `quire serve` alone; `quire bench serve` is [bench.serve]
//   port = 9000
//   cors-origins = ["https://a"]    # --cors-origins, once for each element
//   strict-fields = true            # a flag
//
// A key is the long name of an option, or the name of an argument in small letters (model). The
// command line and the environment win over the file. The whole file is checked, tables of other
// commands too; an error names its line and column.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::cli {

inline constexpr std::size_t kConfigBytesMax = 1 << 20;

// Gives `app`, which has read the command line of `command`, what the file says.
Status apply_config_file(CLI::App& app, std::string_view command, const std::string& path);
// The same for text that was read from `path`, which only errors name.
Status apply_config(CLI::App& app, std::string_view command, std::string_view text,
                    const std::string& path);

// What the parser of options has to say, as a sentence.
std::string parse_problem(const CLI::ParseError& error);

}  // namespace quire::cli
