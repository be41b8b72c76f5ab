// The part of the selftest that is about retention: what stays of a prompt, and the logits after it,
// read whole, in chunks, from the cache and beside others.
#include <fmt/format.h>

#include "base/hash.h"
#include "base/random.h"
#include "engine/lane_rows.h"
#include "engine/retain.h"
#include "engine/selftest.h"

namespace quire {
namespace {

constexpr std::uint32_t kAnswer = 40;  // tokens after the prompt: past a block's edge

struct Way {
  const char* name;
  std::uint32_t chunk;
  bool reuse, beside;
};
constexpr Way kWays[] = {{"whole", 0xffffffffu, false, false},
                         {"in chunks", 37, false, false},
                         {"from the cache", 64, true, false},
                         {"beside another", 50, false, true}};

// Everything that must not depend on the way.
struct Told {
  std::uint64_t kept = 0, logits = 0;
  std::uint64_t compared = 0;
};

Result<Told> tell(Runtime& r, const std::shared_ptr<const RetainPolicy>& policy,
                  std::span<const TokenId> prompt, const Way& way) {
  const auto length = static_cast<std::uint32_t>(prompt.size());
  TRY(const RootId root, r.tenant_root(""));
  Retaining retain(r, policy, length, root);
  TRY(Sequence s, r.cache().open({.root = root,
                                  .token_capacity = length + kAnswer + retain.more_tokens(),
                                  .reuse = way.reuse,
                                  .serve_max = retain.serve_max(),
                                  .recomputable = false}));
  r.cache().attach(s, prompt);
  TRY(Sequence other, r.empty_sequence(2 * length + kAnswer));
  const auto step = [&](std::span<const TokenId> tokens) -> Result<std::span<float>> {
    std::vector<StepItem> items = {{&s, tokens, Logits::last, &retain}};
    if (way.beside) items.push_back({&other, prompt.first(3), Logits::last});
    return r.step(items);
  };
  while (s.length() < length) {
    const std::uint32_t rows = std::min({way.chunk, length - s.length(), 400u});
    TRY([[maybe_unused]] const auto logits, step(prompt.subspan(s.length(), rows)));
  }
  TRY_STATUS(retain.act(r, s));
  Told told;
  for (const std::uint32_t layer : retain.observer().layers())
    for (std::uint32_t h = 0; h < r.config().kv_heads; ++h)
      for (const std::uint32_t t : lane_tokens(r, s, layer, h)) told.kept = mix64(told.kept ^ t);
  for (std::uint32_t i = 0; i < kAnswer; ++i) {
    TRY(const std::span<float> logits, step(prompt.subspan(i, 1)));
    const auto row = logits.first(r.config().vocabulary);
    told.logits = mix64(told.logits ^ hash64(row.data(), row.size_bytes()));
    told.compared += row.size();
  }
  return told;
}

}  // namespace

Status selftest_retain(Runtime& r, std::span<const TokenId> prompt, const std::string& prefix,
                       const std::function<void(const SelftestCheck&)>& report) {
  for (const RetainMethod* m : retain_methods()) {
    if (m->name == "oracle") continue;
    TRY(const RetainPolicy parsed, parse_retain_policy(fmt::format("{}:40%", m->name)));
    const auto policy = std::make_shared<RetainPolicy>(parsed);
    if (!r.check_retain(*policy).ok()) return {};  // this format keeps whole blocks
    Told first;
    SelftestCheck check{.name = fmt::format("{}{} keeps the same, and answers so", prefix, m->name),
                        .ok = true,
                        .compared = 0,
                        .detail = ""};
    r.cache().clear(true);
    for (const Way& way : kWays) {
      TRY(const Told told, tell(r, policy, prompt, way));
      if (&way == kWays) first = told;
      check.compared += told.compared;
      if (check.ok && (told.kept != first.kept || told.logits != first.logits)) {
        check.ok = false;
        check.detail =
            fmt::format("{} when read {}",
                        told.kept != first.kept ? "other tokens stay" : "other logits", way.name);
      }
    }
    report(check);
  }
  return {};
}

}  // namespace quire
