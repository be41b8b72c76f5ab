#include "cli/help.h"

#include <fmt/core.h>

#include "cli/config_file.h"
#include "cli/suggest.h"

namespace quire::cli {
namespace {

// One line per option: its short and its first long name, and the type without what it may be.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return option->get_name(true, false);
    std::string name;
    for (const std::string& s : option->get_snames()) name += (name.empty() ? "-" : ",-") + s;
    if (!option->get_lnames().empty())
      name += (name.empty() ? "--" : ",--") + option->get_lnames().front();
    return name;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0 || option->get_positional()) return {};
    const std::string type = option->get_type_name();
    return " " + type.substr(0, type.find(':'));
  }
};

// Words that the command has no use for: an option that it does not have, or one word too many.
int refuse_extras(const CLI::App& app, const std::string& name) {
  const std::string word = app.remaining().empty() ? "" : app.remaining().front();
  const std::string help = "`" + name + " --help` shows how it is used";
  if (!word.starts_with('-'))
    return fail(kUsage, "'" + word + "' is one argument too many",
                help + "; quotes keep words together");
  const std::string given = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
  const std::string near = nearest(given, known);
  return fail(kUsage, "there is no option '" + given + "'",
              near.empty() ? help : "did you mean " + near + "? " + help);
}

}  // namespace

int run_command(const Command& command, int argc, char** argv) {
  const std::string name = "quire " + std::string(command.name);
  CLI::App app{std::string(command.summary), name};
  app.footer(std::string(command.examples));
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "this text");
  const std::function<int()> run = command.declare(app);
  const auto is_rare = [](const CLI::Option* o) { return o->get_group() == kRare; };
  const bool some_are_rare = !app.get_options(is_rare).empty();
  if (some_are_rare)
    app.set_help_all_flag("--help-all", "this text with options that are rarely needed");
  std::string config;
  app.add_option("--config", config, "TOML file with options")
      ->envname("QUIRE_CONFIG")
      ->group(some_are_rare ? kRare : "");
  const auto rare = app.get_options(is_rare);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForAllHelp&) {
    fmt::print("{}", app.help());
    return kOk;
  } catch (const CLI::CallForHelp&) {
    for (CLI::Option* o : rare) o->group("");
    fmt::print("{}", app.help());
    return kOk;
  } catch (const CLI::ExtrasError&) {
    return refuse_extras(app, name);
  } catch (const CLI::ParseError& e) {
    return fail(kUsage, parse_problem(e), "`" + name + " --help` shows how it is used");
  }
  if (!config.empty())
    if (const Status s = apply_config_file(app, command.name, config); !s.ok())
      return fail(s.error());
  return run();
}

}  // namespace quire::cli
