// engine/draft/lookup.h - prompt lookup: a draft out of the sequence's own tokens.
#pragma once

#include "engine/draft/source.h"

namespace quire {

std::unique_ptr<DraftSource> make_lookup(const DraftScene& scene);

}  // namespace quire
