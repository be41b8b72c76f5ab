// cli/model_files.h - where models and what belongs to them lie, and how a command line names one.
//
//   TRY(std::string path, find_model("smollm2-135m-instruct-q4_1"));   // in the cache folder
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire::cli {

std::string model_cache_folder();
std::vector<std::string> cached_models();  // their names, as find_model takes them

// A path that exists: as given, or looked up among the models in the cache folder and those that were
// pulled from a hub (hf:OWNER/REPO[:FILE], also without hf:); the default model when nothing is given.
// The error lists what is there.
Result<std::string> find_model(const std::string& given);
// The same; what is named with hf: and is not there is fetched.
Result<std::string> find_or_fetch_model(const std::string& given);

// The words of `quire run [MODEL] [TEXT]` and its option -m: a lone word that names no model, and
// does not look like a path to one, is the text. Two models are an error.
struct ModelAndText {
  std::string model, text;
};
Result<ModelAndText> tell_text_from_model(std::string first, std::string second,
                                          std::string named_model);

std::string plan_path(const std::string& model);  // where `quire probe` keeps its plan
// Where `quire calibrate` keeps what a format needs.
std::string calibration_path(const std::string& model, std::string_view format);

std::string home_path(const std::string& path);  // "~/x" in the home folder; others as they are

}  // namespace quire::cli
