#include "cli/config_file.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::cli {
namespace {

// A command line of `quire serve`, in small.
struct Line {
  CLI::App app;
  std::string model, host = "127.0.0.1";
  int port = 8080;
  double drain = 30;
  std::vector<std::string> origins;
  bool strict = false;

  Line() {
    app.add_option("MODEL", model);
    app.add_option("--host", host);
    app.add_option("--port", port)->check(CLI::Range(0, 65535));
    app.add_option("--drain", drain);
    app.add_option("--cors-origins", origins)->delimiter(',');
    app.add_flag("--strict-fields", strict);
  }
  std::string read(std::string_view text, const std::string& given = "") {
    app.parse(given);
    const Status s = apply_config(app, "serve", text, "quire.toml");
    return s.ok() ? "" : s.error().message;
  }
};

TEST(ConfigFile, GivesEveryKindOfOption) {
  Line line;
  EXPECT_EQ(line.read("model = 'a.gguf'\n[serve]\nport = 9000\ndrain = 2.5\n"
                      "cors-origins = ['https://a', 'https://b']\nstrict-fields = true\n"),
            "");
  EXPECT_EQ(line.model, "a.gguf");
  EXPECT_EQ(line.port, 9000);
  EXPECT_EQ(line.drain, 2.5);
  EXPECT_EQ(line.origins, (std::vector<std::string>{"https://a", "https://b"}));
  EXPECT_TRUE(line.strict);
  EXPECT_EQ(line.host, "127.0.0.1");
}

TEST(ConfigFile, TheCommandLineWins) {
  Line line;
  EXPECT_EQ(line.read("port = 9000\nhost = '::1'\n", "--port 7000"), "");
  EXPECT_EQ(line.port, 7000);
  EXPECT_EQ(line.host, "::1");
}

TEST(ConfigFile, AFlagThatIsFalseIsNotGiven) {
  Line line;
  EXPECT_EQ(line.read("strict-fields = false\n"), "");
  EXPECT_FALSE(line.strict);
}

TEST(ConfigFile, ErrorsNameTheirLineAndColumn) {
  const auto error = [](std::string_view text) { return Line().read(text); };
  EXPECT_EQ(error("host = 'a'\nprot = 1\n"),
            "quire.toml:2:1: there is no option 'prot'; did you mean 'port'?");
  EXPECT_EQ(error("port = 70000\n").substr(0, 16), "quire.toml:1:8: ");
  EXPECT_EQ(error("drain = 'long'\n"), "quire.toml:1:9: --drain: 'long' is not a number");
  EXPECT_EQ(error("\nport = [1, 2]\n"), "quire.toml:2:8: 'port' takes one value, not a list");
  EXPECT_EQ(error("strict-fields = 1\n"), "quire.toml:1:17: 'strict-fields' is true or false");
  EXPECT_EQ(error("port = 1979-05-27\n"),
            "quire.toml:1:8: 'port' needs text, a number, true or false");
  EXPECT_EQ(error("[srve]\nport = 1\n").substr(0, 40), "quire.toml:1:2: there is no command 'srv");
  EXPECT_EQ(error("port = \n").substr(0, 13), "quire.toml:1:");
  EXPECT_EQ(error("help = true\n").substr(0, 39), "quire.toml:1:1: there is no option 'hel");
}

TEST(ConfigFile, TablesOfOtherCommandsAreCheckedAndNotGiven) {
  Line line;
  EXPECT_EQ(line.read("[chat]\ntemperature = 0.5\n[bench.serve]\nseed = 3\n"), "");
  EXPECT_EQ(line.port, 8080);
  EXPECT_EQ(Line().read("[chat]\ntemperatur = 0.5\n"),
            "quire.toml:2:1: there is no option 'temperatur'; did you mean 'temperature'?");
}

TEST(ConfigFile, AFileThatIsNotThereIsNamed) {
  Line line;
  const Status s = apply_config_file(line.app, "serve", "/nowhere/quire.toml");
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.error().message.find("/nowhere/quire.toml"), std::string::npos);
}

}  // namespace
}  // namespace quire::cli
