// A file of options from the input: it is read, or its error names a place in it.
#include <cstdint>

#include "base/check.h"
#include "cli/config_file.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 4096) return 0;
  CLI::App app;
  std::string host;
  int port = 0;
  std::vector<std::string> origins;
  bool strict = false;
  app.add_option("--host", host);
  app.add_option("--port", port)->check(CLI::Range(0, 65535));
  app.add_option("--cors-origins", origins)->delimiter(',');
  app.add_flag("--strict-fields", strict);
  app.parse("");
  const Status s =
      cli::apply_config(app, "serve", {reinterpret_cast<const char*>(data), size}, "quire.toml");
  if (!s.ok()) CHECK(s.error().message.starts_with("quire.toml:"));
  CHECK(port >= 0 && port <= 65535);
  return 0;
}
