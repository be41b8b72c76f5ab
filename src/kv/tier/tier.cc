#include "kv/tier/tier.h"

namespace quire {

std::string_view tier_outcome_name(TierOutcome outcome) {
  switch (outcome) {
    case TierOutcome::ok:
      return "ok";
    case TierOutcome::absent:
      return "absent";
    case TierOutcome::corrupt:
      return "corrupt";
    case TierOutcome::failed:
      return "failed";
    case TierOutcome::full:
      return "full";
    case TierOutcome::already:
      return "already";
    case TierOutcome::cancelled:
      return "cancelled";
  }
  return "?";
}

}  // namespace quire
