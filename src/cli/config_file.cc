#include "cli/config_file.h"

#include <fmt/core.h>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <cctype>
#include <fstream>
#include <functional>
#include <optional>
#include <vector>

#include "cli/command.h"
#include "cli/suggest.h"

namespace quire::cli {
namespace {

// Reads one file for one command. Each table of the file belongs to the command that it is named
// after.
class ConfigReader {
 public:
  ConfigReader(CLI::App& app, std::string_view command, const std::string& path)
      : app_(app), command_(command), path_(path) {}

  Status read(std::string_view text) {
    const toml::parse_result parsed = toml::parse(text, path_);
    if (!parsed) return problem(parsed.error().source(), std::string(parsed.error().description()));
    return read_table(parsed.table(), "");
  }

 private:
  // The table of the command `words` ("" for the whole file).
  Status read_table(const toml::table& table, const std::string& words) {
    std::optional<CLI::App> other;  // checks what is not for this command
    std::function<int()> owner;     // of what the options of `other` fill
    CLI::App* app = words.empty() || words == command_ ? &app_ : nullptr;
    if (app == nullptr)
      for (const Command& c : commands())
        if (c.name == words) owner = c.declare(*(app = &other.emplace()));
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      const std::string longer = words.empty() ? name : words + ' ' + name;
      if (const toml::table* inner = node.as_table()) {
        if (!begins_a_command(longer))
          return problem(key.source(), fmt::format("there is no command '{}'", longer),
                         nearest(name, first_words_of_commands()));
        if (const Status s = read_table(*inner, longer); !s.ok()) return s;
      } else if (app == nullptr) {
        return problem(key.source(), fmt::format("'{}' takes no options itself", words));
      } else if (const Status s = give(*app, name, key, node); !s.ok()) {
        return s;
      }
    }
    return {};
  }

  Status give(CLI::App& app, const std::string& name, const toml::key& key,
              const toml::node& node) {
    CLI::Option* option = find(app, name);
    if (option == nullptr)
      return problem(key.source(), fmt::format("there is no option '{}'", name),
                     nearest(name, names_of(app)));
    std::vector<std::string> values;
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& element : *list) {
        auto value = text_of(element);
        if (!value) return wrong_kind(element, name);
        values.push_back(std::move(*value));
      }
      if (option->get_items_expected_max() < static_cast<int>(values.size()))
        return problem(node.source(), fmt::format("'{}' takes one value, not a list", name));
    } else if (option->get_items_expected_max() == 0) {  // a flag
      const auto on = node.value_exact<bool>();
      if (!on) return problem(node.source(), fmt::format("'{}' is true or false", name));
      if (*on) values.emplace_back("true");
    } else {
      auto value = text_of(node);
      if (!value) return wrong_kind(node, name);
      values.push_back(std::move(*value));
    }
    if (values.empty() || option->count() > 0) return {};  // said on the command line
    try {
      option->add_result(std::move(values));
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      return problem(node.source(), parse_problem(error));
    }
    return {};
  }

  static std::optional<std::string> text_of(const toml::node& node) {
    if (const auto* s = node.as_string()) return s->get();
    if (const auto* i = node.as_integer()) return std::to_string(i->get());
    if (const auto* f = node.as_floating_point()) return fmt::format("{}", f->get());
    if (const auto* b = node.as_boolean()) return std::string(b->get() ? "true" : "false");
    return std::nullopt;
  }

  Status wrong_kind(const toml::node& node, const std::string& name) const {
    return problem(node.source(), fmt::format("'{}' needs text, a number, true or false", name));
  }

  static std::string key_of(const CLI::Option& option) {
    if (!option.get_lnames().empty()) return option.get_lnames().front();
    std::string name = option.get_name(true, false);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return name;
  }

  // Not --help, and not the file's own option.
  static bool for_files(const CLI::Option& option) {
    const std::string key = key_of(option);
    return key != "help" && key != "help-all" && key != "config";
  }

  static CLI::Option* find(CLI::App& app, const std::string& name) {
    for (CLI::Option* option : app.get_options()) {
      if (!for_files(*option)) continue;
      if (key_of(*option) == name || option->check_lname(name)) return option;
    }
    return nullptr;
  }

  static std::vector<std::string> names_of(CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
      if (for_files(*option)) names.push_back(key_of(*option));
    return names;
  }

  static bool begins_a_command(const std::string& words) {
    for (const Command& c : commands())
      if (c.name == words || c.name.starts_with(words + ' ')) return true;
    return false;
  }

  static std::vector<std::string> first_words_of_commands() {
    std::vector<std::string> words;
    for (const Command& c : commands()) words.emplace_back(c.name.substr(0, c.name.find(' ')));
    return words;
  }

  Status problem(const toml::source_region& where, std::string what,
                 const std::string& near = {}) const {
    if (!near.empty()) what += fmt::format("; did you mean '{}'?", near);
    return Error{Code::invalid,
                 fmt::format("{}:{}:{}: {}", path_, where.begin.line, where.begin.column, what)};
  }

  CLI::App& app_;
  const std::string_view command_;
  const std::string& path_;
};

}  // namespace

std::string parse_problem(const CLI::ParseError& error) {
  std::string text = error.what();
  constexpr std::string_view kConvert = "Could not convert: ", kMissing = " required ";
  if (text.starts_with(kConvert)) {
    text.erase(0, kConvert.size());
    const std::size_t equals = text.find(" = ");
    if (equals == text.npos) return text + ": cannot be read";
    return fmt::format("{}: '{}' is not a number", text.substr(0, equals), text.substr(equals + 3));
  }
  if (error.get_name() == "ArgumentMismatch" && text.find(kMissing) != text.npos)
    return text.substr(0, text.find(':')) + " needs a value behind it";
  return text;
}

Status apply_config(CLI::App& app, std::string_view command, std::string_view text,
                    const std::string& path) {
  return ConfigReader(app, command, path).read(text);
}

Status apply_config_file(CLI::App& app, std::string_view command, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kConfigBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.gcount() == 0 && !file.eof())
    return Error{Code::invalid, path + ": cannot be read; --config takes a TOML file"};
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kConfigBytesMax)
    return Error{Code::invalid, path + ": is larger than 1 MiB, which no file of options is"};
  return apply_config(app, command, text, path);
}

}  // namespace quire::cli
