// The selftest's part about conversion. The first half of a prompt is encoded from exact blocks.
// The rest is read in one piece, in several, and by a second request that finds the encoded blocks.
#include <fmt/format.h>

#include "base/hash.h"
#include "base/random.h"
#include "engine/convert.h"
#include "engine/selftest.h"
#include "engine/stepper.h"

namespace quire {
namespace {

struct Conversion {
  const char* name;
  std::uint32_t chunk;
  bool cached;
};
constexpr Conversion kConversions[] = {
    {"in one piece", 0xffffffffu, false}, {"in pieces", 7, false}, {"from the cache", 50, true}};

// All logits after `tokens`, as one number; 0 where blocks were not found that should have been.
Result<std::uint64_t> go_on(Runtime& r, const Sequence& exact, std::span<const TokenId> prompt,
                            std::uint32_t tokens, const Conversion& way) {
  const KeyChange changes[] = {
      {.kind = ChangeKind::converted, .value = std::string(r.storage().rows()->name)},
      {.position = tokens, .kind = ChangeKind::producer, .value = "after converted"}};
  const auto length = static_cast<std::uint32_t>(prompt.size());
  Stepper stepper(r);
  TRY(const RootId root, r.tenant_root(""));
  TRY(Sequence s,
      r.cache().open(
          {.root = root, .token_capacity = length, .serve_max = tokens, .changes = changes}));
  if (!way.cached) r.cache().clear(true);
  const Attached found = r.cache().attach(s, prompt);
  if (found.tokens != (way.cached ? tokens : 0)) return std::uint64_t{0};
  if (!way.cached) TRY_STATUS(convert_blocks(r, exact, s, tokens));
  std::uint64_t digest = 1;
  while (s.length() < length) {
    const std::uint32_t count =
        std::min({way.chunk, length - s.length(), r.executor().traits().rows_max});
    const StepItem item{&s, prompt.subspan(s.length(), count), Logits::all};
    TRY(const std::span<float> logits, stepper.run({&item, 1}));
    const std::size_t vocabulary = r.config().vocabulary;
    for (std::uint32_t i = 0; i < count; ++i)
      digest = mix64(digest ^ hash64(&logits[i * vocabulary], vocabulary * sizeof(float)));
  }
  return digest | 1;
}

}  // namespace

Status selftest_convert(Runtime& r, std::span<const TokenId> prompt, const std::string& prefix,
                        const std::function<void(const SelftestCheck&)>& report) {
  if (!r.storage().lossy()) return {};
  const StoragePolicy rows = r.storage().rows();
  const std::uint32_t block = r.geometry().tokens_per_block;
  const auto length = static_cast<std::uint32_t>(prompt.size()),
             tokens = length / 2 / block * block;
  TRY(const RootId root, r.tenant_root("", &rows));
  for (const LayerGroup& g : r.cache().geometry(root).groups)
    if (g.window != 0) return {};  // such models compute instead
  if (tokens == 0) return {};
  TRY(Sequence exact, r.cache().open({.root = root, .token_capacity = length, .reuse = false}));
  r.cache().attach(exact, prompt);
  TRY_STATUS(Stepper(r).prefill(exact, tokens));
  std::uint64_t first = 0;
  SelftestCheck check{
      .name = fmt::format("{}after {} tokens converted from exact ones", prefix, tokens),
      .ok = true};
  for (const Conversion& way : kConversions) {
    TRY(const std::uint64_t digest, go_on(r, exact, prompt, tokens, way));
    if (&way == kConversions) first = digest;
    check.compared += std::uint64_t{length - tokens} * r.config().vocabulary;
    if (check.ok && (digest == 0 || digest != first)) {
      check.ok = false;
      check.detail = fmt::format("{} when gone on with {}",
                                 digest == 0 ? "blocks were not found" : "other logits", way.name);
    }
  }
  report(check);
  return {};
}

}  // namespace quire
