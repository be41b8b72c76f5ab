#include "engine/draft/cached.h"
#include "engine/draft/lookup.h"
#include "engine/draft/prediction.h"
#include "engine/draft/source.h"

namespace quire {
namespace {

// If several sources have a guess, the one with the largest expected gain is used.
constexpr DraftSourceKind kDraftSources[] = {
    {"ngram", make_lookup},
    {"cached", make_cached},
    {"prediction", make_prediction},
};
static_assert(kDraftSources[kPredictionDrafts].make == make_prediction);
static_assert(std::size(kDraftSources) <= kDraftSourcesMax);

}  // namespace

std::span<const DraftSourceKind> draft_sources() { return kDraftSources; }

}  // namespace quire
