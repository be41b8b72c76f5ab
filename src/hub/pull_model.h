// hub/pull_model.h - fetches a model of a hub into the cache folder that Hugging Face's tools share.
//
//   TRY(PulledModel model, pull_model(name, {.access = access, .log = say, .progress = show}));
//   serve(model.path);
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/fetch_file.h"
#include "hub/hub_cache.h"

namespace quire {

struct PullOptions {
  HubAccess access;
  HubCache cache = {};
  std::uint32_t connections = 4;
  HubClient::Log log = {};
  // Bytes of all files that are there, and that there are. From one thread at a time.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

struct PulledModel {
  std::string path;  // a GGUF file, or a folder
  std::string commit;
  std::uint64_t bytes = 0;
  std::vector<std::string> files;   // of the repository
  std::vector<std::string> others;  // GGUF files that were not asked for
};

Result<PulledModel> pull_model(const HubName& name, const PullOptions& options);

}  // namespace quire
