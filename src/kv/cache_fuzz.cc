// A few sequences over a small cache, driven byte by byte; every row read back must be the one its
// tokens imply. The model is each sequence's own token list: it says what every row holds, however
// blocks were shared, copied, moved.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kv/cache.h"
#include "kv/test_model.h"

namespace {
using namespace quire;
constexpr std::uint32_t kBlock = 4, kTokensMax = 40;

struct Slot {
  Sequence sequence;
  std::vector<TokenId> tokens;  // the model
};

void check_rows(KvCache& cache, const Geometry& geometry, const Slot& s) {
  CHECK(std::ranges::equal(s.sequence.tokens(), s.tokens));
  History h;
  h.assign(s.tokens);
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
    const std::uint32_t window = geometry.groups[g].window, length = s.sequence.length();
    const std::uint32_t from = window && length + 1 > window ? length + 1 - window : 0;
    CHECK(toy_matches(cache.arena(), geometry, g, s.sequence.table(g), h, from, length));
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  ManualClock clock;
  CacheOptions o;
  o.budget_bytes = (4 + data[0] % 8) * 4096;
  o.tokens_per_block = kBlock;
  o.node_capacity = 128;
  o.ghost_capacity = 64;
  o.journal_capacity = 64;
  std::array<std::uint8_t, 64> secret{};
  o.secret = KeySecret(secret, {.keep_bits = data[1] & 1 ? 4u : 256u});
  o.poison = true;
  KvCache cache(o, toy_memory(64 * 4096), clock);
  const Geometry geometry =
      data[1] & 4 ? toy_lossy_geometry(kBlock, 0, data[1] >> 3 & 1, data[1] >> 4 & 1)
      : data[1] & 2
          ? toy_geometry({toy_group(GroupKind::full, 1, 1), toy_group(GroupKind::window, 1, 1, 6)},
                         kBlock)
          : toy_geometry({toy_group(GroupKind::full, 1, 1)}, kBlock);
  const RootId root = cache.root(RootIdentity{}, geometry).value();
  std::array<Slot, 6> slots;
  std::vector<LeaseId> leases;

  for (std::size_t at = 2; at + 2 <= size; at += 2) {
    Slot& s = slots[data[at] % slots.size()];
    const std::uint8_t action = data[at] / 8 % 10, arg = data[at + 1];
    clock.advance(1000);
    const bool placed = s.sequence.is_open() && s.sequence.length() == 0;
    if (!s.sequence.is_open()) {
      s.sequence = std::move(cache.open({.root = root, .token_capacity = kTokensMax}).value());
      s.tokens.clear();
      for (std::uint32_t i = 0; i <= arg % 24u; ++i) s.tokens.push_back(arg >> (i % 4 + 4) & 1);
      const Attached got = cache.attach(s.sequence, s.tokens);
      CHECK(got.tokens < s.tokens.size());
      check_rows(cache, geometry, s);
      continue;
    }
    if (action < 4) {  // a step, of which perhaps only a part is accepted
      std::vector<TokenId> all = s.tokens;
      const std::uint32_t length = s.sequence.length();
      std::uint32_t count = 1 + arg % 7, accept = count;
      if (length + count > all.size()) {
        all.resize(length + count, arg >> 6 & 1);
        if (arg & 8)
          accept = std::max(count / 2, static_cast<std::uint32_t>(s.tokens.size()) - length);
      }
      if (length + count > kTokensMax) continue;
      const StepNeed need{&s.sequence, count};
      Result<Reservation> room = cache.reserve({&need, 1});
      if (!room.ok()) {
        s.sequence.close();
        continue;
      }
      History h;
      h.assign(all);
      for (std::uint32_t t = length + accept; t < length + count; ++t) h.set(t, 12345);
      for (std::uint32_t g = 0; g < geometry.groups.size(); ++g)
        toy_write(cache.arena(), geometry, g, room.value().view(0, g, 0), h, length,
                  length + count);
      if (arg & 16) continue;  // the step failed
      room.value().commit(0, std::span(all).subspan(length, accept));
      s.tokens.resize(std::max<std::size_t>(s.tokens.size(), length + accept));
      std::copy(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(length + accept),
                s.tokens.begin());
    } else if (action == 4) {
      s.sequence.close();
    } else if (action == 5) {
      Slot& other = slots[arg % slots.size()];
      if (&other == &s) continue;
      other.sequence.close();
      other.sequence = std::move(cache.fork(s.sequence).value());
      other.tokens = s.tokens;
      check_rows(cache, geometry, other);
    } else if (action == 6) {
      const auto to = static_cast<std::uint32_t>(1 + arg % s.tokens.size());
      cache.truncate(s.sequence, to);
      s.tokens.resize(to);
    } else if (action == 7) {
      if (placed) continue;
      cache.preempt(s.sequence, arg & 1 ? Preempt::park : Preempt::recompute);
      cache.attach(s.sequence);
    } else if (action == 8) {
      cache.resize((3 + arg % 10) * 4096);
    } else if (leases.empty() || arg & 1) {
      Result<LeaseId> id =
          cache.lease(s.sequence, {.ttl = arg & 2 ? 5000 : 0, .pin = (arg & 4) != 0});
      if (id.ok()) leases.push_back(id.value());
    } else {
      (void)cache.release(leases.back()).ok();
      leases.pop_back();
    }
    if (s.sequence.is_open()) check_rows(cache, geometry, s);
    if (arg % 8 == 0) cache.check();
  }
  cache.check();
  for (Slot& s : slots) s.sequence.close();
  for (const LeaseId id : leases) (void)cache.release(id).ok();
  cache.clear(true);
  CHECK(cache.stats().nodes == 0 && cache.stats().referenced_blocks == 0);
  return 0;
}
