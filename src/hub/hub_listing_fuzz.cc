// What a hub sends and what a person types: whatever it is, nothing of it leads out of a folder.
#include "base/check.h"
#include "hub/choose_files.h"
#include "hub/hub_client.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const HubName name = HubName::parse("hf:a/b").value();
  if (const auto listing = parse_hub_listing(text, name); listing.ok()) {
    std::vector<std::string> paths;
    for (const HubFile& file : listing.value().files) {
      CHECK(safe_hub_path(file.path) && file.path.find("..") != 0 && file.path[0] != '/');
      CHECK(file.digest.find_first_not_of("0123456789abcdef") == std::string::npos);
      paths.push_back(file.path);
    }
    for (const char* wanted : {"", "Q4_K_M", "x"})
      if (const auto chosen = choose_files(paths, wanted, "a/b"); chosen.ok())
        for (const std::size_t i : chosen.value().files) CHECK(i < paths.size());
  }
  if (const auto typed = HubName::parse(text); typed.ok()) {
    CHECK(typed.value().full().find("..") == std::string::npos);
    CHECK(HubName::parse(typed.value().text()).value().text() == typed.value().text());
  }
  if (const auto url = WebUrl::parse(text); url.ok())
    CHECK(url.value().text().find_first_of(" \r\n") == std::string::npos);
  if (const auto url = WebUrl::parse("https://a.b/c/d").value().follow(text); url.ok())
    CHECK(url.value().tls && url.value().text().find_first_of(" \r\n") == std::string::npos);
  return 0;
}
