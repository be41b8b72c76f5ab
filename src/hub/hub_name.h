// hub/hub_name.h - how people name a model of a hub: hf:OWNER/REPO[@REVISION][:FILE].
//
//   TRY(HubName name, HubName::parse("hf:unsloth/Qwen3-8B-GGUF:Q4_K_M"));
//   name.text();                            // the same again
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire {

struct HubName {
  std::string owner, repo;
  std::string revision = "main";
  std::string file;  // a file of the repository, a part of its name (Q4_K_M), or empty

  // "hf:" may be left out. Names hold letters, digits and -._ only, so they are safe in paths.
  static Result<HubName> parse(std::string_view text);

  std::string full() const { return owner + "/" + repo; }
  std::string text() const;
};

inline bool names_a_hub(std::string_view text) { return text.starts_with("hf:"); }

// Whether a hub's name of a file may become a path below a folder: no absolute path, no "..", no
// backslash, no control character, nothing that is too long.
bool safe_hub_path(std::string_view path);

}  // namespace quire
