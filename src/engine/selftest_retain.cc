// The part of the selftest that is about retention and selection: what stays of a prompt, and the
// logits after it, read whole, in chunks, from the cache and beside others.
#include <fmt/format.h>

#include "base/hash.h"
#include "base/random.h"
#include "engine/lane_rows.h"
#include "engine/retain.h"
#include "engine/selecting.h"
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

// One of the two.
struct Policy {
  std::shared_ptr<const RetainPolicy> retain;
  std::shared_ptr<const SelectPolicy> select;
};

Result<Told> tell(Runtime& r, const Policy& policy, std::span<const TokenId> prompt,
                  const Way& way) {
  const auto length = static_cast<std::uint32_t>(prompt.size());
  StoragePolicy storage = r.storage();
  if (policy.select) storage.prefill = policy.select->prefill;
  TRY(const RootId root, r.tenant_root("", &storage));
  std::optional<Retaining> retain;
  std::optional<Selecting> select;
  if (policy.retain) retain.emplace(r, policy.retain, length, root);
  if (policy.select && policy.select->answers()) select.emplace(r, *policy.select, length, root);
  TRY(Sequence s,
      r.cache().open({.root = root,
                      .token_capacity = length + kAnswer + (retain ? retain->more_tokens() : 0),
                      .reuse = way.reuse,
                      .publish_generated = retain.has_value(),
                      .serve_max = retain ? retain->serve_max() : 0xffffffffu,
                      .recomputable = false}));
  r.cache().attach(s, prompt);
  TRY(Sequence other, r.empty_sequence(2 * length + kAnswer));
  const auto step = [&](std::span<const TokenId> tokens) -> Result<std::span<float>> {
    std::vector<StepItem> items = {{&s, tokens, Logits::last, retain ? &*retain : nullptr}};
    items[0].select = select ? &*select : nullptr;
    if (way.beside) items.push_back({&other, prompt.first(3), Logits::last});
    return r.step(items);
  };
  while (s.length() < length) {
    const std::uint32_t rows =
        std::min(r.chunk_rows(s, std::min(way.chunk, 400u)), length - s.length());
    TRY([[maybe_unused]] const auto logits, step(prompt.subspan(s.length(), rows)));
  }
  Told told;
  if (retain) {
    TRY_STATUS(retain->act(r, s));
    for (const std::uint32_t layer : retain->observer().layers())
      for (std::uint32_t h = 0; h < r.config().kv_heads; ++h)
        for (const std::uint32_t t : lane_tokens(r, s, layer, h)) told.kept = mix64(told.kept ^ t);
  }
  for (std::uint32_t i = 0; i < kAnswer; ++i) {
    TRY(const std::span<float> logits, step(prompt.subspan(i, 1)));
    const auto row = logits.first(r.config().vocabulary);
    told.logits = mix64(told.logits ^ hash64(row.data(), row.size_bytes()));
    told.compared += row.size();
  }
  return told;
}

Result<SelftestCheck> check(Runtime& r, const Policy& policy, std::span<const TokenId> prompt,
                            std::string name) {
  SelftestCheck made{.name = std::move(name), .ok = true, .compared = 0, .detail = ""};
  Told first;
  r.cache().clear(true);
  for (const Way& way : kWays) {
    TRY(const Told told, tell(r, policy, prompt, way));
    if (&way == kWays) first = told;
    made.compared += told.compared;
    if (made.ok && (told.kept != first.kept || told.logits != first.logits)) {
      made.ok = false;
      made.detail =
          fmt::format("{} when read {}",
                      told.kept != first.kept ? "other tokens stay" : "other logits", way.name);
    }
  }
  return made;
}

}  // namespace

Status selftest_retain(Runtime& r, std::span<const TokenId> prompt, const std::string& prefix,
                       const std::function<void(const SelftestCheck&)>& report) {
  for (const RetainMethod* m : retain_methods()) {
    if (m->name == "oracle") continue;
    TRY(const RetainPolicy parsed, parse_retain_policy(fmt::format("{}:40%", m->name)));
    const auto policy = std::make_shared<RetainPolicy>(parsed);
    if (!r.check_retain(*policy).ok()) break;  // keys of this format do not move
    TRY(const SelftestCheck done,
        check(r, {policy, nullptr}, prompt,
              fmt::format("{}{} keeps the same, and answers so", prefix, m->name)));
    report(done);
  }
  for (const char* text : {"quest:25%", "xattention:0.5", "vertical-slash:24+24"}) {
    TRY(const SelectPolicy parsed, parse_select_policy(text));
    const auto policy = std::make_shared<SelectPolicy>(parsed);
    if (!r.check_select(*policy).ok()) break;
    TRY(const SelftestCheck done,
        check(r, {nullptr, policy}, prompt,
              fmt::format("{}{} reads the same, and answers so", prefix, policy->name)));
    report(done);
  }
  return {};
}

}  // namespace quire
