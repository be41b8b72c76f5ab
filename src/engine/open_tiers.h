// engine/open_tiers.h - the places below memory that a runtime's options name: a cache folder, a
// store that machines share, or both.
//
// The folder comes first. It is the faster one, and it has a secret for the store if no file gives
// one. Nothing is asked of a store here: one that is down is found out by the first request.
//
//   RuntimeParts parts;
//   TRY_STATUS(open_tiers(options, parts));       // its tiers, the cache's secret, where sessions are
#pragma once

#include "engine/runtime.h"

namespace quire {

Status open_tiers(const RuntimeOptions& options, RuntimeParts& parts);

}  // namespace quire
