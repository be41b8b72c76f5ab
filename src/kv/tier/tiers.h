// kv/tier/tiers.h - the kinds of tiers there are: one file and one line each.
//
//   TRY(auto tier, open_tier({.place = "disk:/var/cache/quire/kv",
//                             .capacity_bytes = 100ull << 30, .mailbox = &mailbox}));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/tier/mailbox.h"
#include "kv/tier/secret.h"
#include "kv/tier/tier.h"

namespace quire {

struct TierSettings {
  std::string place;                            // KIND:REST; what REST means is the kind's affair
  std::uint64_t capacity_bytes = 0;             // 0: no bound
  Mailbox* mailbox = nullptr;                   // outlives the tier
  std::optional<DeploymentSecret> secret = {};  // shared tiers need one
  std::function<void(const std::string&)> log = {};  // one line each, from the tier's thread
};

struct TierKind {
  std::string_view name, summary;
  Result<std::unique_ptr<Tier>> (*open)(const TierSettings& settings, const std::string& rest);
};

std::span<const TierKind* const> tier_kinds();
Result<std::unique_ptr<Tier>> open_tier(const TierSettings& settings);

}  // namespace quire
