// engine/draft/prediction.h - drafts out of the text that a client expects (OpenAI's `prediction`).
#pragma once

#include "engine/draft/source.h"

namespace quire {

// Null for requests without a prediction.
std::unique_ptr<DraftSource> make_prediction(const DraftScene& scene);

}  // namespace quire
