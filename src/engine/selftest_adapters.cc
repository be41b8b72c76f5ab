// The selftest's part about adapters, with random ones. A prompt is read without an adapter, with one,
// with two of them, and with one that begins within it: in pieces, side by side in shared steps, and
// from the cache.
#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/random.h"
#include "engine/job.h"
#include "engine/selftest.h"
#include "engine/stepper.h"
#include "model/adapter/adapter.h"

namespace quire {
namespace {

using AdapterSets = std::vector<std::shared_ptr<const AdapterSet>>;

// None, one, two in both orders, and one that begins at the prompt's middle.
Result<AdapterSets> selftest_sets(const Runtime& r, std::span<const TokenId> prompt) {
  const TokenId middle = prompt[prompt.size() / 2];
  TRY(const auto one, Adapter::random(r.config(), 8, 1));
  TRY(const auto two, Adapter::random(r.config(), 20, 2));
  TRY(const auto late, Adapter::random(r.config(), 4, 3, 0.05f, {middle}));
  AdapterSets sets(1);
  for (std::vector<AdapterSet::Part> parts : std::vector<std::vector<AdapterSet::Part>>{
           {{one}}, {{one, 0.5f}, {two}}, {{two}, {one, 0.5f}}, {{late}}}) {
    TRY(auto set, AdapterSet::make(std::move(parts)));
    sets.push_back(std::move(set));
  }
  return sets;
}

Result<Sequence> open_adapted(Runtime& r, const std::shared_ptr<const AdapterSet>& set,
                              std::span<const TokenId> prompt, bool reuse) {
  KvPolicy kv;
  kv.adapters = set;
  const std::vector<KeyChange> changes = key_changes(kv, prompt);
  TRY(const RootId root, r.tenant_root("", nullptr, kv.root_adapter()));
  TRY(Sequence s, r.cache().open({.root = root,
                                  .token_capacity = static_cast<std::uint32_t>(prompt.size()),
                                  .reuse = reuse,
                                  .changes = changes,
                                  .adapters = set,
                                  .adapted_from = set ? set->begins_at(prompt) : 0}));
  r.cache().attach(s, prompt);
  return s;
}

// Reads sequences together, `chunk` tokens of each in a step. A digest of all logits of each, from
// `from` on; 0 where they are not finite.
Result<std::vector<std::uint64_t>> read_together(Runtime& r, std::span<Sequence> sequences,
                                                 std::uint32_t chunk, std::uint32_t from) {
  Stepper stepper(r);
  const std::size_t vocabulary = r.config().vocabulary;
  std::vector<std::uint64_t> digests(sequences.size(), 1);
  for (;;) {
    std::vector<StepItem> items;
    std::vector<std::size_t> whose;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::uint32_t at = sequences[i].length();
      const auto left = static_cast<std::uint32_t>(sequences[i].tokens().size()) - at;
      const auto room = static_cast<std::uint32_t>(stepper.rows_max() / sequences.size());
      const std::uint32_t count = std::min({left, chunk, std::max(room, 1u)});
      if (count == 0) continue;
      items.push_back({&sequences[i], sequences[i].tokens().subspan(at, count), Logits::all});
      whose.push_back(i);
    }
    if (items.empty()) return digests;
    std::vector<std::uint32_t> begins;
    for (const StepItem& item : items) begins.push_back(item.sequence->length());
    TRY(const std::span<float> logits, stepper.run(items));
    std::size_t row = 0;
    for (std::size_t i = 0; i < items.size(); ++i)
      for (std::size_t t = 0; t < items[i].tokens.size(); ++t, ++row) {
        const auto of = std::span<const float>(logits).subspan(row * vocabulary, vocabulary);
        std::uint64_t& digest = digests[whose[i]];
        const bool finite = std::ranges::all_of(of, [](float x) { return x - x == 0; });
        if (begins[i] + t < from || digest == 0) continue;
        digest = finite ? mix64(digest ^ hash64(of.data(), of.size_bytes())) | 1 : 0;
      }
  }
}

Result<std::vector<std::uint64_t>> read_alone(Runtime& r, const AdapterSets& sets,
                                              std::span<const TokenId> prompt, std::uint32_t chunk,
                                              std::uint32_t from = 0) {
  std::vector<std::uint64_t> all;
  for (const auto& set : sets) {
    TRY(Sequence s, open_adapted(r, set, prompt, false));
    TRY(const auto one, read_together(r, {&s, 1}, chunk, from));
    all.push_back(one[0]);
  }
  return all;
}

}  // namespace

Result<std::uint64_t> adapters_fingerprint(Runtime& r, std::span<const TokenId> prompt) {
  TRY(const AdapterSets sets, selftest_sets(r, prompt));
  TRY(const auto all, read_alone(r, sets, prompt, 0xffffffffu));
  return hash64(all.data(), all.size() * sizeof all[0]) | 1;
}

Status selftest_adapters(Runtime& r, std::span<const TokenId> prompt, const std::string& prefix,
                         const std::function<void(const SelftestCheck&)>& report) {
  const std::string name = prefix + "adapters, ";
  if (!r.executor().traits().adapters) {
    report({.name = name + "any", .ok = true, .tried = false, .detail = "computed on a CPU only"});
    return {};
  }
  prompt = prompt.first(std::min<std::size_t>(prompt.size(), 120));
  const auto length = static_cast<std::uint32_t>(prompt.size());
  TRY(const AdapterSets sets, selftest_sets(r, prompt));
  r.cache().clear(true);
  TRY(const auto alone, read_alone(r, sets, prompt, length));
  const auto tell = [&](const std::string& what, bool ok, std::string detail = "") {
    report({.name = name + what,
            .ok = ok,
            .compared = std::uint64_t{length} * sets.size() * r.config().vocabulary,
            .detail = ok ? "" : std::move(detail)});
  };
  const auto first_of = [&](const std::vector<std::uint64_t>& got) {
    const auto at = std::ranges::mismatch(got, alone).in1 - got.begin();
    return fmt::format("set {}", at);
  };
  std::vector<std::uint64_t> different = alone;
  std::ranges::sort(different);
  tell("each with an answer of its own",
       std::ranges::adjacent_find(different) == different.end() && different[0] != 0,
       "two are equal, or not finite");
  for (const std::uint32_t chunk : {1u, 7u, 40u}) {
    TRY(const auto got, read_alone(r, sets, prompt, chunk));
    tell(fmt::format("in chunks of {}", chunk), got == alone, first_of(got));
  }
  for (const std::uint32_t chunk : {1u, 5u, 50u}) {
    std::vector<Sequence> together;
    for (const auto& set : sets) {
      TRY(Sequence s, open_adapted(r, set, prompt, false));
      together.push_back(std::move(s));
    }
    TRY(const auto got, read_together(r, together, chunk, 0));
    tell(fmt::format("in one batch, {} tokens of each in a step", chunk), got == alone,
         first_of(got));
  }
  // By now each has left its blocks. What begins late finds those of the model before that.
  TRY(const auto tails, read_alone(r, sets, prompt, length, length - 1));
  const std::uint32_t block = r.geometry().tokens_per_block;
  bool served = true;
  std::vector<std::uint64_t> got;
  std::string lengths;
  for (const auto& set : sets) {
    TRY(Sequence s, open_adapted(r, set, prompt, true));
    served = served && s.length() >= (length - 1) / block * block;
    lengths += fmt::format(" {}", s.length());
    TRY(const auto one, read_together(r, {&s, 1}, length, length - 1));
    got.push_back(one[0]);
  }
  const bool whole = r.geometry().exact();  // else a hit ends at a block
  tell("from the cache", got == tails && (served || !whole),
       got == tails ? fmt::format("of {} tokens it served{}", length, lengths) : first_of(got));
  r.cache().clear(true);
  return {};
}

}  // namespace quire
