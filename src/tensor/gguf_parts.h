// tensor/gguf_parts.h - the file names of a GGUF model that is split into several files.
//
// Parts are NAME-00001-of-00003.gguf and so on, and lie in one folder. Used by tensor/gguf.cc, which
// opens them together, and by whoever must know all files of a model.
//
//   part_of("m/x-00002-of-00003.gguf")   // {"m/x", 2, 3}
//   TRY(auto files, gguf_files("m/x"));  // all three, in order
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

struct GgufPart {
  std::string prefix;  // with the folder
  std::uint32_t number = 1, count = 1;

  std::string path(std::uint32_t of_number) const;
};
std::optional<GgufPart> part_of(std::string_view path);
std::string gguf_stem(const std::string& path);  // without folder, number and ".gguf"

// All files of the model that `path` names: a file, any part of a split one, or the prefix of the
// parts' names. Only those that exist, but `path` itself if there is nothing else. An error if parts of
// several models have the prefix.
Result<std::vector<std::string>> gguf_files(const std::string& path);

}  // namespace quire
