// Drafts of the simulated engine. Most worlds have a source that was told what requests answer alone,
// and lies: drafts are accepted and rejected at all places. In others it is the real ones.
#include <charconv>

#include "engine/draft/testing.h"
#include "sim/engine_world.h"

namespace quire {

ServiceOptions EngineWorld::with_drafts(ServiceOptions service) {
  DraftOptions& drafts = service.drafts;
  const double kind = draft_random_.unit();
  // No step is submitted ahead of one with drafts.
  if (kind < 0.3 || theme_ == Asks::Theme::greedy) return service;
  drafts.tokens_max = 1 + static_cast<std::uint32_t>(draft_random_.below(40));
  drafts.adaptive = draft_random_.chance(0.2);
  if (kind < 0.5) {
    drafts.sources = 0xf;
    drafts.lookup_min = 1;
  } else {
    drafts.source = [this](const DraftScene& scene) { return make_source(scene); };
  }
  return service;
}

std::unique_ptr<DraftSource> EngineWorld::make_source(const DraftScene& scene) {
  auto texts = std::make_shared<Prophet::Texts>();
  const Request& r = scene.request;
  if (!r.kv.blend && !r.kv.convert && draft_random_.chance(0.8)) {
    std::uint64_t ask = 0;
    std::from_chars(r.id.data(), r.id.data() + r.id.size(), ask);
    const AnswerLog& alone =
        alone_.answers(ask, r.tokens_max, [&] { return make(ask, r.tokens_max); });
    for (const AnswerLog::Answer& answer : alone.answers) {
      texts->push_back(r.prompt);
      for (const Choice& choice : answer.tokens) texts->back().push_back(choice.token);
    }
  }
  const double lies = draft_random_.chance(0.3) ? 0 : 0.4 * draft_random_.unit();
  return std::make_unique<Prophet>(std::move(texts), Prophet::Lies{.often = lies},
                                   Random(draft_random_.next()));
}

void EngineWorld::count_drafts(const DraftTallies& drafts) {
  for (const DraftTally& tally : drafts) {
    report_.features["drafts"] += tally.drafts;
    report_.features["guesses accepted"] += tally.accepted;
    report_.features["guesses rejected"] += tally.tokens - tally.accepted;
  }
  if (!crowd_.service().drafts.source) report_.features["drafts by lookup"] += drafts[0].drafts;
}

}  // namespace quire
