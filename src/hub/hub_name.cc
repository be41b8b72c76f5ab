#include "hub/hub_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {
namespace {

bool plain_word(std::string_view word) {
  return !word.empty() && word.size() <= 96 && word.front() != '.' && word.front() != '-' &&
         word.find("..") == word.npos && word.find("--") == word.npos &&
         std::ranges::all_of(word, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '.' || c == '_';
         });
}

}  // namespace

bool safe_hub_path(std::string_view path) {
  if (path.empty() || path.size() > 1024) return false;
  if (std::ranges::any_of(path, [](char c) {
        return c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
      }))
    return false;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    at = end + 1;
  }
  return true;
}

Result<HubName> HubName::parse(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return Error{Code::invalid,
                 fmt::format("'{}' does not name a model of a hub: {}; write hf:OWNER/REPO, "
                             "hf:OWNER/REPO:FILE or hf:OWNER/REPO:Q4_K_M",
                             text.substr(0, 200), why)};
  };
  std::string_view rest = text;
  if (rest.starts_with("hf:")) rest.remove_prefix(3);
  HubName name;
  const std::size_t slash = rest.find('/');
  if (slash == rest.npos) return bad("there is no /");
  name.owner = rest.substr(0, slash);
  rest.remove_prefix(slash + 1);
  const std::size_t end = std::min(rest.find_first_of("@:"), rest.size());
  name.repo = rest.substr(0, end);
  rest.remove_prefix(end);
  if (rest.starts_with('@')) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    name.revision = rest.substr(1, colon - 1);
    rest.remove_prefix(colon);
    if (!safe_hub_path(name.revision)) return bad("the revision is no name of one");
  }
  if (rest.starts_with(':')) {
    name.file = rest.substr(1);
    if (!safe_hub_path(name.file)) return bad("the file's name is no path inside a repository");
  }
  if (!plain_word(name.owner) || !plain_word(name.repo))
    return bad("names have letters, digits and - . _");
  return name;
}

std::string HubName::text() const {
  return "hf:" + full() + (revision == "main" ? "" : "@" + revision) +
         (file.empty() ? "" : ":" + file);
}

}  // namespace quire
