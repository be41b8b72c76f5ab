#include "sim/simulator.h"

#include <algorithm>

#include "kv/evict/evict.h"
#include "sim/world.h"

namespace quire {
namespace {

SimPlace place_now{};

std::array<std::uint8_t, 64> secret_bytes(std::uint64_t seed) {
  std::array<std::uint8_t, 64> bytes;
  Random r(seed);
  for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(r.next());
  return bytes;
}

}  // namespace

Simulator::Simulator(const SimOptions& o)
    : options_(o),
      random_(o.seed),
      secret_(secret_bytes(o.seed), {.keep_bits = o.seed % 4 == 3 ? 8u : 256u}),
      truncated_keys_(o.seed % 4 == 3) {
  budget_ = kPage * (8 + random_.below(10));
  CacheOptions c;
  c.budget_bytes = budget_;
  c.tokens_per_block = kBlock;
  const auto policies = evict_policies();
  c.evictor = policies[o.seed % policies.size()]->name;
  c.secret = secret_;
  c.pin_budget = 0.15;
  c.node_capacity = random_.chance(0.2) ? 64 : 1024;
  c.sequences_max = 64;
  c.ghost_capacity = 256;
  c.journal_capacity = 4096;
  c.roots_max = 5;  // trees and a visitor
  c.tenant_roots_max = 2;
  c.size_classes_max = 16;
  c.poison = true;
  auto memory = std::make_unique<FailingMemory>(toy_memory(4 * 24 * kPage, kPage));
  memory_ = memory.get();
  cache_ = std::make_unique<KvCache>(c, std::move(memory), clock_);

  const Geometry shapes[] = {
      toy_geometry({toy_group(GroupKind::full, 1, 1)}, kBlock),
      toy_geometry({toy_group(GroupKind::full, 1, 1), toy_group(GroupKind::window, 1, 1, 6)},
                   kBlock),
      toy_geometry({toy_group(GroupKind::window, 1, 2, 9)}, kBlock),
      toy_geometry({toy_group(GroupKind::full, 1, 1), toy_group(GroupKind::state, 1, 0)}, kBlock),
      toy_geometry({toy_group(GroupKind::latent, 3, 1, 0, 12)}, kBlock),
      toy_geometry({toy_group(GroupKind::state, 2, 0)}, kBlock),
      toy_lossy_geometry(kBlock),
      toy_lossy_geometry(kBlock, 9),
      toy_lossy_geometry(kBlock, 0, 2, 1),
  };
  const std::size_t tree_count = 2 + random_.below(3);
  for (std::size_t i = 0; i < tree_count; ++i) {
    // Two tenants on one geometry, and then whatever comes.
    const Geometry& g =
        shapes[i < 2 ? o.seed % std::size(shapes) : random_.below(std::size(shapes))];
    RootIdentity identity;
    identity.tenant = tenant_name(i);
    const RootId id = cache_->root(identity, g).value();
    trees_.push_back({g, mix64(o.seed * 31 + i), cache_->root_key(id)});
  }
  for (int i = 0; i < 3; ++i) {
    std::vector<TokenId> f;
    for (std::uint32_t t = 0; t < kTokensMax; ++t)
      f.push_back(static_cast<TokenId>(random_.below(3)));
    families_.push_back(std::move(f));
  }
}

// Applies what the journal says to the flat map, and checks that nothing forbidden happened.
void Simulator::follow_journal() {
  const Journal& journal = cache_->journal();
  CHECK(journal.first() <= journal_seen_);
  for (; journal_seen_ < journal.next(); ++journal_seen_) {
    const JournalRecord& r = journal.at(journal_seen_);
    if (reason_kind(r.reason) == ReasonKind::eviction) ++report_.evicted_blocks;
    if (truncated_keys_) continue;
    if (r.reason == Reason::stored || r.reason == Reason::stored_duplicate)
      reference_.stored(r.key, static_cast<std::uint32_t>(r.extra));
    if (reason_kind(r.reason) != ReasonKind::eviction) continue;
    reference_.evicted(r.key, r.group);
    for (const Pin& p : pins_)  // nothing pinned leaves while the pin lives
      if (p.pin && (p.expires == 0 || p.expires > clock_.now()))
        CHECK(std::ranges::find(p.keys, r.key) == p.keys.end());
  }
}

void Simulator::balance() {
  follow_journal();
  const CacheStats s = cache_->stats();
  CHECK(s.free_bytes + s.referenced_bytes + s.cached_bytes + s.fenced_bytes + s.slack_bytes ==
        s.slab_bytes);
  if (pending_.empty()) CHECK(s.fenced_bytes == 0);
  if (!truncated_keys_) CHECK(s.indexed_blocks == reference_.blocks());
  if (!truncated_keys_)  // a chain has no holes while somebody runs on it
    for (const auto& l : live_) {
      const Geometry& g = trees_[l->root].geometry;
      const bool chain =
          g.groups[0].kind == GroupKind::full || g.groups[0].kind == GroupKind::latent;
      if (l->placed || !chain || cache_->ragged_until(l->sequence, 0) > 0) continue;
      for (std::uint32_t b = 0; b < l->sequence.published_blocks(); ++b)
        CHECK(reference_.groups_of(l->keys[b].prefix()) & 1);
    }
  report_.moves = s.blocks_moved;
  report_.deduplicated = s.blocks_deduplicated;
}

void Simulator::turn(bool faults) {
  const std::uint64_t work = report_.appended_tokens + report_.hit_tokens + report_.evicted_blocks +
                             report_.forks + report_.moves;
  clock_.advance(1 + static_cast<Nanoseconds>(random_.below(1'000'000)));
  const std::uint64_t dice = random_.below(100);
  if (faults) {
    if (dice < 18 && live_.size() < kLiveMax) arrive();
    if (dice >= 18 && dice < 22) fork();
    if (dice >= 22 && dice < 25) truncate();
    if (dice >= 25 && dice < 28) cancel();
    if (dice >= 28 && dice < 32) preempt_random();
    if (dice >= 32 && dice < 36) leases();
    if (dice >= 36 && dice < 39) memory_events();
    if (dice == 39) compact();
    if (dice == 40) limit_tenant();
    if (dice == 41) visit();
  }
  admit(true);
  if (pending_.size() < 2) start_step(faults);
  if (pending_.size() == 2 || !faults || random_.chance(0.7)) finish_step();
  balance();
  check_limits();
  if (random_.chance(1.0 / 32)) cache_->check();
  ++report_.turns;
  place_now.turn = report_.turns;
  if (work != report_.appended_tokens + report_.hit_tokens + report_.evicted_blocks +
                  report_.forks + report_.moves)
    ++report_.steps;
}

// Faults stop: every admitted request finishes in a bounded number of turns, and every block is
// given back.
void Simulator::drain() {
  memory_->never_fail();
  cache_->resize(std::max(budget_, std::uint64_t{kPage} * 16));
  for (std::uint32_t turns = 0; !live_.empty(); ++turns) {
    CHECK(turns < 4000);
    turn(false);
  }
  while (!pending_.empty()) finish_step();
  for (const Pin& p : pins_)
    if (cache_->lease_info(p.id).ok()) CHECK(cache_->release(p.id).ok());
  pins_.clear();
  balance();
  cache_->check();
  const CacheStats idle = cache_->stats();
  CHECK(idle.referenced_blocks == 0 && idle.fenced_bytes == 0 && idle.pinned_bytes == 0 &&
        idle.parked == 0);
  cache_->clear(true);
  follow_journal();
  const CacheStats empty = cache_->stats();
  CHECK(empty.cached_blocks == 0 && empty.indexed_blocks == 0 && empty.nodes == 0);
}

SimReport Simulator::run() {
  place_now = {options_.seed, 0};
  while (report_.turns < options_.steps) turn(true);
  drain();
  return report_;
}

void SimReport::add(const SimReport& o) {
  steps += o.steps;
  turns += o.turns;
  appended_tokens += o.appended_tokens;
  hit_tokens += o.hit_tokens;
  evicted_blocks += o.evicted_blocks;
  forks += o.forks;
  moves += o.moves;
  requests += o.requests;
  finished += o.finished;
  cancelled += o.cancelled;
  preempted += o.preempted;
  refused_steps += o.refused_steps;
  partial_hits += o.partial_hits;
  waited += o.waited;
  rows_checked += o.rows_checked;
  resizes += o.resizes;
  pins += o.pins;
  limits += o.limits;
  visits += o.visits;
  snapshots += o.snapshots;
  compactions += o.compactions;
  deduplicated += o.deduplicated;
}

SimReport simulate(const SimOptions& options) { return Simulator(options).run(); }

SimPlace sim_place() { return place_now; }

}  // namespace quire
