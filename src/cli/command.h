// cli/command.h - the commands of the `quire` program: one entry and one file each.
//
// A command declares its options on a CLI11 app and returns the function that runs it. Results go
// to stdout, everything else to stderr; errors read "error: what happened" and "hint: what to do".
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace quire::cli {

// Exit codes, as scripts know them.
enum Exit : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kNoModel = 3,
  kNoMemory = 4,
  kCannotBind = 5,
  kUnreachable = 6,
  kUnverified = 7,
  kInterrupted = 130,
};

// A name may be two words ("bench serve"): then it is tried before that of the first word alone.
struct Command {
  std::string_view name, summary, examples;
  std::function<int()> (*declare)(CLI::App& app);
};

std::span<const Command> commands();

// Prints an error the way users see it, and gives its exit code back.
int fail(int exit_code, const std::string& message, const std::string& hint = {});
int fail(const Error& error);

void print_json(const Json& value);

}  // namespace quire::cli
