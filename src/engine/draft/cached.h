// engine/draft/cached.h - drafts out of cached texts of the same root and salt.
#pragma once

#include "engine/draft/source.h"

namespace quire {

// Null for requests that reuse nothing.
std::unique_ptr<DraftSource> make_cached(const DraftScene& scene);

}  // namespace quire
