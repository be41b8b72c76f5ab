#include "cli/dispatch.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/help.h"
#include "cli/suggest.h"

namespace quire::cli {
namespace {

const Command* find_command(std::string_view name) {
  for (const Command& c : commands())
    if (c.name == name) return &c;
  return nullptr;
}

std::string listed(std::string_view prefix) {
  std::string text;
  for (const Command& c : commands())
    if (c.name.starts_with(prefix)) text += fmt::format("  {:<14}{}\n", c.name, c.summary);
  return text;
}

int overview() {
  fmt::print(
      "Quire runs language models and looks after their KV cache.\n\n"
      "usage: quire COMMAND [options]\n\ncommands:\n{}"
      "\n`quire COMMAND --help` tells more. MODEL is a GGUF file or a Hugging Face folder; without "
      "one, the\ndefault model in the cache folder is used.\n",
      listed(""));
  return kOk;
}

int group_overview(const std::string& first) {
  fmt::print("usage: quire {} COMMAND [options]\n\ncommands:\n{}", first, listed(first + ' '));
  return kOk;
}

bool asks_for_help(std::string_view word) {
  return word == "help" || word == "--help" || word == "-h";
}

}  // namespace

std::vector<std::string> first_words() {
  std::vector<std::string> words;
  for (const Command& c : commands()) {
    std::string first(c.name.substr(0, c.name.find(' ')));
    if (std::ranges::find(words, first) == words.end()) words.push_back(std::move(first));
  }
  return words;
}

std::vector<std::string> second_words(std::string_view first) {
  std::vector<std::string> words;
  for (const Command& c : commands())
    if (c.name.size() > first.size() && c.name.starts_with(first) && c.name[first.size()] == ' ')
      words.emplace_back(c.name.substr(first.size() + 1));
  return words;
}

int dispatch(int argc, char** argv) {
  if (argc < 2) return overview();
  std::string first = argv[1];
  if (first == "--version") first = "version";
  if (asks_for_help(first)) {
    if (argc == 2) return overview();
    // `quire help kv formats` is `quire kv formats --help`.
    std::string help = "--help";
    std::vector<char*> words(argv, argv + argc);
    words.erase(words.begin() + 1);
    words.push_back(help.data());
    return dispatch(static_cast<int>(words.size()), words.data());
  }
  if (argc > 2)
    if (const Command* both = find_command(first + ' ' + argv[2]))
      return run_command(*both, argc - 2, argv + 2);
  if (const Command* one = find_command(first)) return run_command(*one, argc - 1, argv + 1);
  const std::vector<std::string> follow = second_words(first);
  if (!follow.empty()) {
    if (argc == 2 || asks_for_help(argv[2])) return group_overview(first);
    const std::string near = nearest(argv[2], follow);
    return fail(kUsage, fmt::format("there is no command '{} {}'", first, argv[2]),
                near.empty() ? fmt::format("`quire {}` lists them", first)
                             : fmt::format("did you mean `quire {} {}`?", first, near));
  }
  const std::string near = nearest(first, first_words());
  return fail(kUsage, "there is no command '" + first + "'",
              near.empty() ? "`quire help` lists them" : "did you mean `quire " + near + "`?");
}

}  // namespace quire::cli
