// hub/hub_cache.h - the folder that Hugging Face's tools keep models in, and Quire with them.
//
//   models--OWNER--REPO/blobs/DIGEST              the bytes, by what they are
//   models--OWNER--REPO/snapshots/COMMIT/PATH     links to them
//   models--OWNER--REPO/refs/main                 the commit that a name means
//
// What one program has fetched the other finds.
//
//   HubCache cache;                                       // HF_HUB_CACHE, HF_HOME, or ~/.cache/huggingface
//   TRY(std::string path, cache.find(name));              // a GGUF file, or a folder
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/hub_name.h"

namespace quire {

struct CachedModel {
  HubName name;      // with the file, where the repository has several GGUF files
  std::string path;  // what Quire loads
  std::uint64_t bytes = 0;
  std::int64_t changed_s = 0;  // since 1970
};

class HubCache {
 public:
  HubCache();  // as the environment says
  explicit HubCache(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  std::string repo_folder(const HubName& name) const;

  // What is there, whole. The error says how to fetch it.
  Result<std::string> find(const HubName& name) const;
  std::vector<CachedModel> models() const;  // that Quire could load, by name

  // Takes a model away: with a file, that one and the bytes nobody else links to; without, the whole
  // repository. Returns the bytes that became free.
  Result<std::uint64_t> remove(const HubName& name);

  // Of pulling: the blob's path, a link to it, and what a revision means from now on.
  std::string blob(const HubName& name, const std::string& digest) const;
  Status link(const HubName& name, const std::string& commit, const std::string& path,
              const std::string& digest) const;
  Status set_revision(const HubName& name, const std::string& commit) const;

 private:
  std::string folder_;
};

// The repository's name where `path` is a snapshot's folder: "REPO" of .../models--OWNER--REPO/
// snapshots/COMMIT. Empty: it is none.
std::string repo_of_snapshot(const std::string& path);

// Where the hub is and who asks: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME/token, HF_HUB_OFFLINE.
struct HubAccess {
  std::string endpoint = "https://huggingface.co";
  std::string token = {};
  bool offline = false;

  static Result<HubAccess> from_environment();
};

}  // namespace quire
