// cli/version.cc - `quire version` and `quire completion`: what this program is, and how shells
// complete it.
#include <fmt/core.h>

#include <algorithm>

#include "base/cpu.h"
#include "cli/command.h"
#include "format/format.h"
#include "kernels/attend.h"
#include "kernels/linear.h"

namespace quire::cli {
namespace {

struct VersionOptions {
  bool json = false;
  std::string shell;
};

int version(const VersionOptions& o) {
  Json isas = Json::array(), kv_formats = Json::array();
  for (const Isa isa : kIsas)
    if (cpu_has(isa)) isas.push_back(isa_name(isa));
  for (const Format* f : formats()) kv_formats.push_back(f->name);
  if (o.json) {
    print_json({{"version", QUIRE_VERSION},
                {"compiler", __VERSION__},
                {"cpu", isas},
                {"isa", isa_name(best_isa())},
                {"gpu", nullptr},
                {"kernel_set", {{"linear", kLinearVersion}, {"attend", kAttendVersion}}},
                {"kv_formats", kv_formats}});
  } else {
    fmt::print("quire {} (kernels: {}; compiler {})\n", QUIRE_VERSION, isa_name(best_isa()),
               __VERSION__);
  }
  return kOk;
}

// The long options of a command, from its own declaration.
std::string options_of(const Command& command) {
  CLI::App app;
  command.declare(app);
  std::string words;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  return words;
}

bool two_words(const Command& command) { return command.name.find(' ') != std::string_view::npos; }

int completion(const VersionOptions& o) {
  std::string names;
  for (const Command& c : commands())
    if (!two_words(c)) names += std::string(c.name) + " ";
  if (o.shell == "fish") {
    for (const Command& c : commands()) {
      const std::size_t space = std::min(c.name.find(' '), c.name.size());
      const std::string_view first = c.name.substr(0, space), second = c.name.substr(space);
      fmt::print("complete -c quire -n '{}' -a {} -d \"{}\"\n",
                 second.empty() ? "__fish_use_subcommand"
                                : fmt::format("__fish_seen_subcommand_from {}", first),
                 second.empty() ? first : second.substr(1), c.summary);
      std::string words = options_of(c), word;
      for (const char ch : words) {
        if (ch != ' ') {
          word += ch;
          continue;
        }
        fmt::print("complete -c quire -n '__fish_seen_subcommand_from {}' -l {}\n",
                   second.empty() ? first : second.substr(1), word.substr(2));
        word.clear();
      }
    }
    return kOk;
  }
  if (o.shell == "zsh") fmt::print("autoload -U +X bashcompinit && bashcompinit\n");
  fmt::print(
      "_quire() {{\n  local word=\"${{COMP_WORDS[COMP_CWORD]}}\" options=\"\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W \"{}help\" -- \"$word\")); "
      "return; fi\n"
      "  case \"${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}\" in\n",
      names);
  for (const bool both : {true, false})  // the longer name first: the first pattern wins
    for (const Command& c : commands())
      if (two_words(c) == both)
        fmt::print("    \"{}\"{}) options=\"{}\" ;;\n", c.name, both ? "" : "\\ *", options_of(c));
  fmt::print(
      "  esac\n  case \"$word\" in\n    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) "
      ";;\n"
      "    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n  esac\n}}\ncomplete -o filenames -F "
      "_quire quire\n");
  return kOk;
}

std::function<int()> declare_version(CLI::App& app) {
  auto o = std::make_shared<VersionOptions>();
  app.add_flag("--json", o->json, "build, compiler, processor, kernels");
  return [o] { return version(*o); };
}

std::function<int()> declare_completion(CLI::App& app) {
  auto o = std::make_shared<VersionOptions>();
  app.add_option("SHELL", o->shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [o] { return completion(*o); };
}

}  // namespace

extern const Command kVersion = {"version", "what this program was built with", "",
                                 declare_version};
extern const Command kCompletion = {"completion", "a completion script for your shell",
                                    "example:\n  source <(quire completion bash)",
                                    declare_completion};

}  // namespace quire::cli
