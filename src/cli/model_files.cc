#include "cli/model_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/pull.h"
#include "hub/hub_cache.h"
#include "tensor/gguf_parts.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultModel = "smollm2-135m-instruct-q4_1.gguf";

fs::path quire_cache() { return fs::path(model_cache_folder()).parent_path(); }

bool looks_like_path(std::string_view word) {
  if (word.starts_with('/') || word.starts_with("./") || word.starts_with("../") ||
      word.starts_with('~') || word.starts_with("hf:") || word.ends_with(".gguf"))
    return true;
  return word.find('/') != word.npos && word.find_first_of(" \t\n") == word.npos;
}

}  // namespace

std::string model_cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache && *cache ? cache : std::string(home ? home : ".") + "/.cache";
  return base + "/quire/models";
}

std::vector<std::string> cached_models() {
  std::vector<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& e : fs::directory_iterator(model_cache_folder(), none)) {
    if (const auto part = part_of(e.path().string()); part && part->number > 1) continue;
    if (e.path().extension() == ".gguf")
      names.push_back(gguf_stem(e.path().string()));
    else if (fs::exists(e.path() / "config.json", none))
      names.push_back(e.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

Result<std::string> find_model(const std::string& given) {
  const std::string name = given.empty() ? kDefaultModel : given, folder = model_cache_folder();
  for (const std::string& path : {given, folder + "/" + name, folder + "/" + name + ".gguf"}) {
    if (path.empty()) continue;
    TRY(const std::vector<std::string> files, gguf_files(path));  // of a split model: the first
    if (std::error_code none; fs::exists(files.front(), none)) return files.front();
  }
  if (given.empty())
    return Error{Code::not_found, "no model given, and the default one is not in " + folder +
                                      "; `scripts/fetch-model` fetches it"};
  const auto hub = HubName::parse(given);
  if (hub.ok()) {
    auto pulled = HubCache().find(hub.value());
    if (pulled.ok() || names_a_hub(given)) return pulled;
  } else if (names_a_hub(given)) {
    return hub.error();
  }
  if (looks_like_path(given))
    return Error{Code::not_found, "no model at " + given +
                                      "; give a GGUF file or a Hugging Face folder" +
                                      (hub.ok() ? ", or hf:" + given + " to fetch it" : "")};
  std::string there;
  for (const std::string& model : cached_models()) there += (there.empty() ? "" : ", ") + model;
  return Error{
      Code::not_found,
      "no model at " + given + "; by name there " + (there.empty() ? "is none" : "are " + there) +
          " (in " + folder +
          "). Give the path of a GGUF file or a Hugging Face folder, fetch one with `quire "
          "pull hf:OWNER/REPO`, or the default model with `scripts/fetch-model`"};
}

Result<std::string> find_or_fetch_model(const std::string& given) {
  auto found = find_model(given);
  if (found.ok() || !names_a_hub(given)) return found;
  TRY(const HubName name, HubName::parse(given));
  TRY(const PulledModel pulled, pull_with_progress(name));
  return pulled.path;
}

Result<ModelAndText> tell_text_from_model(std::string first, std::string second,
                                          std::string named_model) {
  if (!named_model.empty() && !first.empty() && !second.empty())
    return Error{Code::invalid, "two models: -m " + named_model + " and " + first +
                                    "; with -m, only the text stands alone"};
  if (!named_model.empty()) return ModelAndText{named_model, second.empty() ? first : second};
  if (!first.empty() && second.empty() && !looks_like_path(first) && !find_model(first).ok())
    return ModelAndText{"", first};
  return ModelAndText{first, second};
}

std::string plan_path(const std::string& model) {
  return quire_cache() / "plans" / (fs::path(model).filename().string() + ".json");
}

std::string calibration_path(const std::string& model, std::string_view format) {
  return quire_cache() / "calibrations" /
         (fs::path(model).filename().string() + "." + std::string(format));
}

std::string home_path(const std::string& path) {
  const char* home = std::getenv("HOME");
  if (home == nullptr || (path != "~" && !path.starts_with("~/"))) return path;
  return home + path.substr(1);
}

}  // namespace quire::cli
