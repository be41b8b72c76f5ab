// The part of the selftest that is about retention, selection and reuse: what stays of a prompt, and
// the logits after it, read whole, in chunks, from the cache, from a snapshot and beside others.
#include <fmt/format.h>

#include "base/hash.h"
#include "base/random.h"
#include "engine/blend.h"
#include "engine/combine.h"
#include "engine/lane_rows.h"
#include "engine/retain.h"
#include "engine/selecting.h"
#include "engine/selftest.h"
#include "engine/stepper.h"

namespace quire {
namespace {

// What is read, and how many tokens come after it: past a block's edge.
struct Text {
  std::span<const TokenId> prompt;
  std::uint32_t answer;
};

struct Way {
  const char* name;
  std::uint32_t chunk;
  bool reuse, beside, snapshot = false;
};
constexpr Way kWays[] = {{"whole", 0xffffffffu, false, false},
                         {"in chunks", 37, false, false},
                         {"from the cache", 64, true, false},
                         {"beside another", 50, false, true},
                         {"from a snapshot", 64, true, false, true}};

// Everything that must not depend on the way.
struct Digests {
  std::uint64_t kept = 0, logits = 0;
  std::uint64_t compared = 0;
};

// One of the two.
struct Policy {
  std::shared_ptr<const RetainPolicy> retain;
  std::shared_ptr<const SelectPolicy> select;
};

// Continues twice from the state that a policy left at its cut: first with other tokens, then with
// the prompt's. The sequence and its policy become those of the second continuation.
Status go_on_from_snapshot(Stepper& stepper, Sequence& s, std::optional<Retaining>& retain,
                           std::span<const TokenId> prompt) {
  Runtime& r = stepper.runtime();
  const std::uint32_t cut = retain->cut();
  TRY_STATUS(stepper.prefill(s, cut, 0, {}, &*retain));
  TRY_STATUS(retain->drop_due(stepper, s));
  TRY(Sequence kept, r.cache().fork(s));
  (void)r.cache().truncate(kept, cut);
  std::optional<Retaining> as_kept = retain;
  const std::uint32_t some = std::min(9u, retain->rows_max(s.length()));
  const StepItem stray{&s, prompt.first(some), Logits::last, &*retain};
  TRY([[maybe_unused]] const auto logits, stepper.run({&stray, 1}));
  s = std::move(kept);
  retain = std::move(as_kept);
  r.cache().extend(s, prompt.subspan(cut));
  return {};
}

Result<Digests> digest_run(Runtime& r, const Policy& policy, const Text& text, const Way& way) {
  Stepper stepper(r);
  const std::span<const TokenId> prompt = text.prompt;
  const std::uint32_t answer = text.answer;
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
                      .token_capacity = length + answer + (retain ? retain->more_tokens() : 0),
                      .reuse = way.reuse,
                      .publish_generated = retain.has_value(),
                      .serve_max = retain ? retain->serve_max() : 0xffffffffu,
                      .recomputable = false}));
  r.cache().attach(s, way.snapshot ? prompt.first(retain->cut()) : prompt);
  if (way.snapshot) TRY_STATUS(go_on_from_snapshot(stepper, s, retain, prompt));
  TRY(Sequence other, r.empty_sequence(2 * length + answer));
  const auto step = [&](std::span<const TokenId> tokens) -> Result<std::span<float>> {
    Program* const program = retain ? static_cast<Program*>(&*retain) : select ? &*select : nullptr;
    std::vector<StepItem> items = {{&s, tokens, Logits::last, program}};
    if (way.beside) items.push_back({&other, prompt.first(3), Logits::last});
    return stepper.run(items);
  };
  while (s.length() < length) {
    const std::uint32_t rows =
        std::min({stepper.chunk_rows(s, std::min(way.chunk, 400u)), length - s.length(),
                  retain ? retain->rows_max(s.length()) : length});
    TRY([[maybe_unused]] const auto logits, step(prompt.subspan(s.length(), rows)));
  }
  Digests digest;
  if (retain) {
    TRY_STATUS(retain->drop_due(stepper, s));
    for (const std::uint32_t layer : retain->observer().layers())
      for (std::uint32_t h = 0; h < r.config().kv_heads; ++h)
        for (const std::uint32_t t : lane_tokens(r, s, layer, h))
          digest.kept = mix64(digest.kept ^ t);
  }
  for (std::uint32_t i = 0; i < answer; ++i) {
    TRY(const std::span<float> logits, step(prompt.subspan(i, 1)));
    const auto row = logits.first(r.config().vocabulary);
    digest.logits = mix64(digest.logits ^ hash64(row.data(), row.size_bytes()));
    digest.compared += row.size();
  }
  return digest;
}

Result<SelftestCheck> check(Runtime& r, const Policy& policy, const Text& text, std::string name) {
  SelftestCheck made{.name = std::move(name), .ok = true};
  Digests first;
  r.cache().clear(true);
  for (const Way& way : kWays) {
    if (way.snapshot && !(policy.retain && policy.retain->snapshots())) continue;
    TRY(const Digests digest, digest_run(r, policy, text, way));
    if (&way == kWays) first = digest;
    made.compared += digest.compared;
    if (made.ok && (digest.kept != first.kept || digest.logits != first.logits)) {
      made.ok = false;
      made.detail =
          fmt::format("{} when read {}",
                      digest.kept != first.kept ? "other tokens stay" : "other logits", way.name);
    }
  }
  return made;
}

// A digest of the logits after a prompt whose second half was cached by itself. `share` of that
// half is computed again, `rows` at a time. 0: nothing was found. A negative share: the prompt is
// read.
Result<std::uint64_t> blended(Runtime& r, const Text& text, double share, std::uint32_t rows,
                              std::uint64_t& compared) {
  const std::span<const TokenId> prompt = text.prompt;
  const std::uint32_t answer = text.answer;
  TRY(const RootId root, r.tenant_root(""));
  const auto length = static_cast<std::uint32_t>(prompt.size()), half = length / 2;
  r.cache().clear(true);
  TRY(Sequence alone, r.open_sequence(length));
  r.cache().attach(alone, prompt.subspan(half));
  Stepper stepper(r);
  TRY_STATUS(stepper.prefill(alone, length - half));
  alone.close();
  const SequenceOptions options{.root = root, .token_capacity = length + answer, .publish = false};
  TRY(Sequence s, r.cache().open(options));
  r.cache().attach(s, prompt);
  if (share >= 0) {
    std::optional<Blend> blend = find_blend(r, s, share, options);
    if (!blend) return std::uint64_t{0};
    TRY_STATUS(blend->lay(r));
    while (!blend->done()) TRY_STATUS(blend->advance(stepper, rows));
  }
  std::uint64_t digest = 1;
  TRY(std::span<float> logits, stepper.read(s));
  for (std::uint32_t i = 0; i < answer; ++i) {
    digest = mix64(digest ^ hash64(logits.data(), logits.size_bytes()));
    compared += logits.size();
    const StepItem next{&s, prompt.subspan(i, 1), Logits::last};
    TRY(logits, stepper.run({&next, 1}));
  }
  return digest | 1;
}

// Approximate reuse promises less: its answer depends on what else is cached.
Status selftest_blend(Runtime& r, const Text& text, const std::string& prefix,
                      const std::function<void(const SelftestCheck&)>& report) {
  const Geometry geometry = r.geometry();
  if (!check_combination({.geometry = &geometry, .blends = true}).ok()) return {};
  if (r.config().learned_positions) return {};  // nothing that stood elsewhere is taken
  const auto said = [](const char* how, bool found) {
    return std::string(found ? "other logits " : "nothing was found ") + how;
  };
  SelftestCheck whole{.name = prefix + "approximate reuse, all of it computed again", .ok = true};
  TRY(const std::uint64_t read, blended(r, text, -1, 0, whole.compared));
  TRY(const std::uint64_t all, blended(r, text, 1, 512, whole.compared));
  whole.ok = all == read;
  if (!whole.ok) whole.detail = said("than when the prompt is read", all != 0);
  report(whole);
  SelftestCheck some{.name = prefix + "approximate reuse, a part computed again in pieces",
                     .ok = true};
  TRY(const std::uint64_t once, blended(r, text, 0.2, 512, some.compared));
  TRY(const std::uint64_t pieces, blended(r, text, 0.2, 29, some.compared));
  some.ok = once != 0 && once == pieces;
  some.detail = some.ok ? "with the same texts cached; an exception, with others it differs"
                        : said("in pieces", once != 0);
  report(some);
  return {};
}

}  // namespace

Status selftest_retain(Runtime& r, std::span<const TokenId> prompt, const std::string& prefix,
                       SelftestMethods methods,
                       const std::function<void(const SelftestCheck&)>& report) {
  // Steps take most of the time, so answers are short unless `thoroughly` is set. They begin right
  // before an edge of blocks of any size.
  const auto length = static_cast<std::uint32_t>(prompt.size());
  const Text text = methods == SelftestMethods::thoroughly
                        ? Text{prompt, 40}
                        : Text{prompt.first(std::min(length, 188u)), 8};
  const bool all = methods != SelftestMethods::few;
  const auto try_method = [&](const std::string& named) -> Status {
    TRY(const RetainPolicy parsed, parse_retain_policy(named));
    const auto policy = std::make_shared<RetainPolicy>(parsed);
    if (!r.check_retain(*policy).ok()) return {};  // keys of this format do not move
    TRY(const SelftestCheck done,
        check(r, {policy, nullptr}, text,
              fmt::format("{}{} keeps the same, and answers so{}", prefix, policy->name,
                          policy->snapshots() ? ", also from a snapshot" : "")));
    report(done);
    return {};
  };
  const auto cut = static_cast<std::uint32_t>(text.prompt.size()) * 2 / 3;
  for (const RetainMethod* m : retain_methods()) {
    if (m->name == "oracle" || (!all && m->name != "snapkv" && m->name != "keydiff")) continue;
    const bool shared = m->shares == RetainClass::snapshot;
    if (all || !shared) TRY_STATUS(try_method(fmt::format("{}:40%", m->name)));
    if (shared) TRY_STATUS(try_method(fmt::format("{}:40%,cut={}", m->name, cut)));
  }
  for (const char* named : {"quest:25%", "xattention:0.5", "vertical-slash:24+24"}) {
    TRY(const SelectPolicy parsed, parse_select_policy(named));
    const auto policy = std::make_shared<SelectPolicy>(parsed);
    if (!r.check_select(*policy).ok()) break;
    TRY(const SelftestCheck done,
        check(r, {nullptr, policy}, text,
              fmt::format("{}{} reads the same, and answers so", prefix, policy->name)));
    report(done);
    if (!all) break;
  }
  return selftest_blend(r, text, prefix, report);
}

}  // namespace quire
