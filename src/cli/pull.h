// cli/pull.h - fetching a model of a hub where somebody is watching: `quire pull`, and commands that
// are given hf:OWNER/REPO.
#pragma once

#include "hub/pull_model.h"

namespace quire::cli {

// From the hub of the environment into its cache folder. Prints progress, and what there was to wait for.
Result<PulledModel> pull_with_progress(const HubName& name, std::uint32_t connections = 4);

}  // namespace quire::cli
