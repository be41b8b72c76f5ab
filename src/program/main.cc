// program/main.cc - `quire COMMAND ...`: finds the command in the table and runs it.
#include <fmt/core.h>

#include <csignal>
#include <string>

#include "cli/help.h"

namespace {

using quire::cli::Command;

std::string overview() {
  std::string text =
      "Quire runs language models and looks after their KV cache.\n\n"
      "usage: quire COMMAND [options]\n\ncommands:\n";
  for (const Command& c : quire::cli::commands())
    text += fmt::format("  {:<14}{}\n", c.name, c.summary);
  text +=
      "\n`quire COMMAND --help` tells more. MODEL is a GGUF file or a Hugging Face folder; without "
      "one, the\n"
      "default model in the cache folder is used.\n";
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  const std::string name = argc > 1 ? argv[1] : "help";
  if (name == "help" || name == "--help" || name == "-h") {
    fmt::print("{}", overview());
    return quire::cli::kOk;
  }
  const std::string wanted = name == "--version" ? "version" : name;
  const std::string two_words = argc > 2 ? wanted + ' ' + argv[2] : wanted;
  for (const Command& command : quire::cli::commands())
    if (argc > 2 && command.name == two_words)
      return quire::cli::run_command(command, argc - 2, argv + 2);
  for (const Command& command : quire::cli::commands())
    if (command.name == wanted) return quire::cli::run_command(command, argc - 1, argv + 1);
  std::string near;
  for (const Command& c : quire::cli::commands())
    if (c.name.substr(0, 2) == std::string_view(wanted).substr(0, 2)) near = c.name;
  return quire::cli::fail(
      quire::cli::kUsage, "there is no command '" + wanted + "'",
      near.empty() ? "`quire help` lists them" : "did you mean `quire " + near + "`?");
}
