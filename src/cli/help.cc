#include "cli/help.h"

#include <fmt/core.h>

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

}  // namespace

int run_command(const Command& command, int argc, char** argv) {
  const std::string name = "quire " + std::string(command.name);
  CLI::App app{std::string(command.summary), name};
  app.footer(std::string(command.examples));
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "this text");
  const std::function<int()> run = command.declare(app);
  const auto rare = app.get_options([](const CLI::Option* o) { return o->get_group() == kRare; });
  if (!rare.empty())
    app.set_help_all_flag("--help-all", "the same, with options that are rarely needed");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForAllHelp&) {
    fmt::print("{}", app.help());
    return kOk;
  } catch (const CLI::CallForHelp&) {
    for (CLI::Option* o : rare) o->group("");
    fmt::print("{}", app.help());
    return kOk;
  } catch (const CLI::ParseError& e) {
    return fail(kUsage, e.what(), "`" + name + " --help` shows how it is used");
  }
  return run();
}

}  // namespace quire::cli
