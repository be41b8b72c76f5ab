// cli/version.cc - `quire version` and `quire completion`: what this program is, and how shells
// complete it.
#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "base/cpu.h"
#include "cli/command.h"
#include "cli/dispatch.h"
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

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += w + ' ';
  return text;
}

void complete_in_fish() {
  for (const std::string& first : first_words()) {
    const auto is = [&](const Command& c) { return c.name == first; };
    const auto found = std::ranges::find_if(commands(), is);
    fmt::print("complete -c quire -n __fish_use_subcommand -a {} -d \"{}\"\n", first,
               found == commands().end() ? joined(second_words(first)) : found->summary);
  }
  for (const Command& c : commands()) {
    const std::size_t space = c.name.find(' ');
    const std::string_view last = c.name.substr(space == c.name.npos ? 0 : space + 1);
    if (space != c.name.npos)
      fmt::print("complete -c quire -n '__fish_seen_subcommand_from {}' -a {} -d \"{}\"\n",
                 c.name.substr(0, space), last, c.summary);
    std::istringstream words(options_of(c));
    for (std::string word; words >> word;)
      fmt::print("complete -c quire -n '__fish_seen_subcommand_from {}' -l {}\n", last,
                 word.substr(2));
  }
}

// A function of bash, which zsh understands, too.
void complete_in_bash() {
  fmt::print(
      "_quire() {{\n  local word=\"${{COMP_WORDS[COMP_CWORD]}}\" options=\"\" more=\"\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W \"{}help\" -- \"$word\")); "
      "return; fi\n"
      "  case \"${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}\" in\n",
      joined(first_words()));
  const auto two_words = [](const Command& c) { return c.name.find(' ') != c.name.npos; };
  for (const bool both : {true, false})  // the longer name first: the first pattern wins
    for (const Command& c : commands())
      if (two_words(c) == both)
        fmt::print("    \"{}\"{}) options=\"{}\" ;;\n", c.name, both ? "" : "\\ *", options_of(c));
  fmt::print("  esac\n  if [ \"$COMP_CWORD\" -eq 2 ]; then\n    case \"${{COMP_WORDS[1]}}\" in\n");
  for (const std::string& first : first_words())
    if (const auto follow = second_words(first); !follow.empty())
      fmt::print("      {}) more=\"{}\" ;;\n", first, joined(follow));
  fmt::print("      help) more=\"{}\" ;;\n    esac\n  fi\n", joined(first_words()));
  fmt::print(
      "  case \"$word\" in\n    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
      "    *) COMPREPLY=($(compgen -W \"$more\" -- \"$word\") $(compgen -f -- \"$word\")) ;;\n"
      "  esac\n}}\ncomplete -o filenames -F _quire quire\n");
}

int completion(const VersionOptions& o) {
  if (o.shell == "fish") {
    complete_in_fish();
    return kOk;
  }
  if (o.shell == "zsh") fmt::print("autoload -U +X bashcompinit && bashcompinit\n");
  complete_in_bash();
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
