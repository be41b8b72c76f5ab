// hub/choose_files.h - which files of a repository make a model that Quire can load.
//
// The same choice is made among a hub's files, before they are fetched, and among those that are in
// the cache.
//
//   TRY(ChosenFiles chosen, choose_files(paths, "Q4_K_M", "owner/repo"));
//   for (std::size_t i : chosen.files) fetch(paths[i]);
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

struct ChosenFiles {
  std::vector<std::size_t> files;  // by index of what was given
  std::string main;  // the GGUF file, or its first part; empty: the folder is the model
  std::vector<std::string> others;  // GGUF files that could have been chosen, too
};

// `wanted`: a path, a part of a GGUF file's name (Q4_K_M), or nothing: Q4_K_M where there is one, else
// the nearest to it; without GGUF files, the safetensors with their configuration and tokenizer.
// Files that come in parts are chosen whole, or it is an error.
Result<ChosenFiles> choose_files(std::span<const std::string> paths, std::string_view wanted,
                                 std::string_view repo);

}  // namespace quire
