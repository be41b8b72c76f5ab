#include "engine/draft/cached.h"
#include "engine/draft/lookup.h"
#include "engine/draft/prediction.h"
#include "engine/draft/source.h"

namespace quire {
namespace {

// Where several have something to say, the one with the longest expected gain speaks.
constexpr DraftSourceRow kDraftSources[] = {
    {"ngram", make_lookup},
    {"cached", make_cached},
    {"prediction", make_prediction},
};
static_assert(kDraftSources[kPredictionRow].make == make_prediction);
static_assert(std::size(kDraftSources) <= kDraftSourcesMax);

}  // namespace

std::span<const DraftSourceRow> draft_sources() { return kDraftSources; }

}  // namespace quire
