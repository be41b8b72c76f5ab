#include "kv/tier/tiers.h"

namespace quire {

extern const TierKind kDiskTierKind, kFolderTierKind, kRedisTierKind, kRedisTlsTierKind,
    kS3TierKind;

namespace {
constexpr const TierKind* kTierKinds[] = {&kDiskTierKind, &kFolderTierKind, &kRedisTierKind,
                                          &kRedisTlsTierKind, &kS3TierKind};
}

std::span<const TierKind* const> tier_kinds() { return kTierKinds; }

Result<std::unique_ptr<Tier>> open_tier(const TierSettings& settings) {
  const std::size_t colon = settings.place.find(':');
  const std::string name = settings.place.substr(0, colon);
  std::string known;
  for (const TierKind* kind : kTierKinds) {
    if (colon != std::string::npos && kind->name == name)
      return kind->open(settings, settings.place.substr(colon + 1));
    known += ' ' + std::string(kind->name) + ':';
  }
  return Error{Code::invalid, "no kind of tier begins '" + name + ":'; there are:" + known};
}

}  // namespace quire
