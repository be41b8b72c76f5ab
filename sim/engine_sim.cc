#include "sim/engine_sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "sim/engine_world.h"

namespace quire {
namespace {

EngineSimPlace place;

using Theme = Asks::Theme;

DeploymentSecret shared_secret() {
  return DeploymentSecret::parse(std::string(2 * KeySecret::kBytes, '7'), "the simulation").value();
}

// From one that answers at once to one that takes longer than computing. Where blocks are to arrive
// while others run, what is loaded is on its way for many steps.
MemoryTierOptions draw_tier(Random& random, const ToyEngineOptions& o, bool arriving) {
  MemoryTierOptions tier;
  constexpr double kRates[] = {1e5, 1e7, 2e7, 4e7, 1e8, 1e10}, kArriving[] = {3e6, 6e6, 1.2e7};
  tier.bytes_per_s = arriving ? kArriving[random.below(std::size(kArriving))]
                              : kRates[random.below(std::size(kRates))];
  if (random.chance(0.5)) tier.first_byte_ns = static_cast<Nanoseconds>(random.below(100'000));
  if (!arriving && random.chance(0.3))
    tier.first_byte_ns = static_cast<Nanoseconds>(random.below(5'000'000));
  const double often = arriving ? 0.1 : 0.3;
  if (random.chance(often)) tier.fail_chance = 0.05;
  if (random.chance(often)) tier.corrupt_chance = 0.05;
  if (random.chance(often)) tier.lose_chance = 0.1;
  if (random.chance(often)) tier.traits.capacity_bytes = o.cache_bytes / 2;
  tier.seed = random.next();
  return tier;
}

// A disk, a store that machines share, or both. The store is the slower one.
void draw_tiers(Random& random, ToyEngineOptions& o, bool arriving) {
  const double which = random.unit();
  if (which < 0.8) o.tiers.push_back(draw_tier(random, o, arriving));
  if (which > 0.5) {
    MemoryTierOptions& store = o.tiers.emplace_back(draw_tier(random, o, arriving));
    store.traits = {.name = "remote", .shared = true, .durable = true};
    store.secret = shared_secret();
    if (o.tiers.size() > 1) {
      store.bytes_per_s = std::min(store.bytes_per_s, o.tiers[0].bytes_per_s / 2);
      store.first_byte_ns = std::max(store.first_byte_ns, 2 * o.tiers[0].first_byte_ns);
    }
  }
  o.tier_write = arriving ? TierWrite::always : static_cast<TierWrite>(random.below(4));
  if (random.chance(0.3)) o.row_time *= 10;  // then loading is worth more
}

ToyEngineOptions draw_opened(Random& random, Theme theme) {
  const bool arriving = theme == Theme::arriving;
  ToyEngineOptions o;
  o.model = random.chance(0.2) ? ToyModel::windows : ToyModel::full;
  constexpr const char* kEvictors[] = {"odds", "cost", "lru"};
  o.evictor = kEvictors[random.below(3)];
  o.cache_bytes = (random.chance(0.25) ? 1500 : 220 + random.below(300)) * 1024;
  o.draws = random.chance(0.3);
  if (random.chance(0.15)) o.nodes = 64;
  if (random.chance(0.15)) o.key_bits = 2;
  if (o.model == ToyModel::windows) o.cache_bytes *= 2;
  // No draw of its own: worlds of a seed stay what they were. Latent rows have no budgets.
  const bool budgets = theme == Theme::reading || theme == Theme::cuts;
  if (o.model == ToyModel::full && !budgets && o.cache_bytes / 1024 % 8 == 3)
    o.model = ToyModel::latent;
  // Names of records are made of keys: where these are equal by design, there is no tier.
  if (arriving) o.key_bits = 256;
  if (arriving || (random.chance(0.4) && o.key_bits == 256)) draw_tiers(random, o, arriving);
  // Slabs of several blocks, which must be emptied by moving some: while steps run ahead, or while
  // others arrive.
  const bool often = theme == Theme::greedy || !o.tiers.empty();
  if (arriving || random.chance(often ? 0.7 : 0.3)) {
    o.page_bytes = 16384;
    o.cache_bytes = o.cache_bytes * 3 / 2;
  }
  return o;
}

ServiceOptions draw_service(Random& random, Theme theme) {
  ServiceOptions o;
  // What computing costs is measured in large steps only. Where there are none, all that is stored is loaded.
  o.step_tokens =
      16 + static_cast<std::uint32_t>(random.below(theme == Theme::arriving ? 40 : 100));
  if (random.chance(0.5)) o.prompt_tokens = 8 + static_cast<std::uint32_t>(random.below(40));
  o.sequences_max = 4 + static_cast<std::uint32_t>(random.below(12));
  o.preemptions_max = static_cast<std::uint32_t>(random.below(6));
  if (random.chance(0.5)) o.preempt = random.chance(0.5) ? Preempt::park : Preempt::recompute;
  o.requests_kept = 16;
  o.ahead = random.chance(theme == Theme::greedy ? 0.9 : 0.6);
  o.follow_max = 1'000'000 * static_cast<Nanoseconds>(random.below(200));
  return o;
}

}  // namespace

EngineSimPlace engine_sim_place() { return place; }

void EngineSimReport::add(const EngineSimReport& o) {
  worlds += o.worlds;
  steps += o.steps;
  rows += o.rows;
  requests += o.requests;
  compared += o.compared;
  alone_steps += o.alone_steps;
  for (const auto& [name, times] : o.features) features[name] += times;
}

EngineWorld::EngineWorld(const EngineSimOptions& options)
    : options_(options),
      theme_(Asks::theme_of(options.seed)),
      random_(mix64(options.seed ^ 0x656e67696e65)),
      opened_(draw_opened(random_, theme_)),
      crowded_(theme_ != Theme::arriving && random_.chance(0.25)),
      memory_fails_(!crowded_ && random_.chance(0.2)),
      resizes_(!crowded_ && random_.chance(theme_ == Theme::arriving ? 0.9 : 0.5)),
      limits_(!crowded_ && random_.chance(0.35)),
      draft_random_(mix64(options.seed ^ 0x647261667473)),
      crowd_(opened_, with_drafts(draw_service(random_, theme_))),
      asks_(options.seed, crowd_.runtime()),
      alone_(opened_) {
  if (!crowded_ && random_.chance(0.4)) {
    const Asks::Policy& policy = asks_.policies()[random_.below(asks_.policies().size())];
    const bool sparse = policy.storage && policy.storage->prefill.way != SparsePrefill::Way::none;
    guest_.emplace(crowd_, asks_.texts()[0], sparse ? nullptr : policy.storage.get());
  }
  ToyTrouble& t = crowd_.trouble();
  t.random = Random(random_.next());
  if (random_.chance(0.2)) t.lost = 0.003;
  if (random_.chance(0.3)) t.nan = 0.002;
}

void EngineWorld::step() {
  crowd_.step();
  ++place.step;
  count_moves();
  crowd_.clock().advance(static_cast<Nanoseconds>(random_.below(1'000'000)));
  collect();
  check_limits();
  if (place.step % 64 == 0) crowd_.cache().check();
}

void EngineWorld::trouble() {
  if (random_.chance(0.03)) leave();
  if (guest_ && random_.chance(0.3)) guest_->turn(random_, report_.features);
  if (random_.chance(0.005)) {
    crowd_.clock().advance(static_cast<Nanoseconds>(random_.below(5'000'000'000)));
    ++report_.features["clock jumped"];
  }
  if (random_.chance(0.004)) {
    crowd_.cache().clear(false);
    ++report_.features["cache cleared"];
  }
  const bool arriving = theme_ == Theme::arriving;
  if (!opened_.tiers.empty() && random_.chance(arriving ? 0.1 : 0.04))
    crowd_.cache().clear(false);  // what comes next is in a tier
  for (MemoryTier* const tier : crowd_.tiers()) {
    if (random_.chance(0.01)) tier->set_down(random_.chance(0.1));
    if (random_.chance(0.002)) tier->clear();
    report_.features["tier down"] += tier->stats().open == 0;
  }
  if (random_.chance(0.004)) {
    crowd_.engine().drop_snapshots();
    ++report_.features["snapshots dropped"];
  }
  if (!leases_.empty() && random_.chance(0.01)) {
    (void)crowd_.cache().release(leases_.back().id);  // it may have expired
    leases_.pop_back();
  }
  if (random_.chance(0.1)) check_pins();
  if (limits_ && random_.chance(0.03)) limit_tenant();
  resize();
  if (!memory_fails_ || !random_.chance(0.05)) return;
  if (random_.chance(0.4)) {
    crowd_.memory().fail_after(random_.below(8));
    ++report_.features["memory failed"];
  } else {
    crowd_.memory().never_fail();
  }
}

// Blocks were moved while others were on their way from a tier, whose room must stay where it is.
void EngineWorld::count_moves() {
  if (opened_.tiers.empty()) return;
  const std::uint64_t moved = crowd_.cache().stats().blocks_moved;
  report_.features["moved while blocks arrived"] += moved > moved_ && crowd_.cache().landings() > 0;
  moved_ = moved;
}

void EngineWorld::tell_unfinished() {
  const CacheStats c = crowd_.cache().stats();
  fmt::print(stderr,
             "{} requests do not finish; {} steps; of {} bytes {} are referenced, {} cached, {} "
             "fenced, {} free, {} slack, {} pinned; {} sequences, {} parked, {} landings\n",
             live_.size(), crowd_.engine().stats().steps, c.budget_bytes, c.referenced_bytes,
             c.cached_bytes, c.fenced_bytes, c.free_bytes, c.slack_bytes, c.pinned_bytes,
             c.sequences, c.parked, crowd_.cache().landings());
  constexpr const char* kStates[] = {"waits", "is read", "answers"};
  for (const ActiveRequest& a : crowd_.engine().active())
    fmt::print(stderr, "ask {} {}: {} of {} tokens computed, {} made, preempted {} times\n", a.id,
               kStates[static_cast<int>(a.state)], a.computed_tokens, a.prompt_tokens,
               a.generated_tokens, a.preemptions);
}

// Slabs are emptied: most often while blocks arrive, whose room must stay where it is.
void EngineWorld::resize() {
  if (!resizes_ || !random_.chance(crowd_.cache().landings() > 0 ? 0.3 : 0.1)) return;
  const std::uint64_t all = opened_.cache_bytes, has = crowd_.cache().stats().slab_bytes;
  const std::uint64_t most = random_.chance(0.5) ? all : std::clamp(has, all / 2, all);
  crowd_.cache().resize(most * (5 + random_.below(6)) / 10);
  ++report_.features["cache resized"];
}

// Trouble stops. Whoever is here finishes, and nothing is left behind.
void EngineWorld::finish_all() {
  crowd_.trouble().lost = crowd_.trouble().nan = 0;
  crowd_.memory().never_fail();
  for (MemoryTier* const tier : crowd_.tiers()) tier->set_down(false);
  crowd_.cache().resize(opened_.cache_bytes);
  if (guest_) guest_->leave();
  for (int turns = 0; crowd_.engine().has_jobs(); ++turns) {
    step();
    crowd_.clock().advance(1'000'000);
    if (turns < 20'000) continue;
    tell_unfinished();
    std::abort();
  }
  CHECK(live_.empty());
  for (int turns = 0; crowd_.cache().landings() > 0; ++turns) {  // rooms of those who left
    step();
    crowd_.clock().advance(1'000'000'000);
    CHECK(turns < 1000);
  }
  crowd_.engine().drop_snapshots();
  check_pins();
  for (const Lease& lease : leases_) (void)crowd_.cache().release(lease.id);
  crowd_.clock().advance(1'000'000'000);  // the others end by themselves
  crowd_.cache().poll();
  crowd_.cache().check();
  CacheStats left = crowd_.cache().stats();
  CHECK(left.sequences == 0 && left.referenced_blocks == 0 && left.parked == 0);
  crowd_.cache().clear(true);
  crowd_.cache().check();
  left = crowd_.cache().stats();
  // Leases of requests that failed are reported to nobody; they keep their nodes.
  if (left.cached_blocks > 0 || (left.nodes > 0 && left.leases == 0)) {
    fmt::print(stderr, "{} cached blocks and {} nodes are left\n", left.cached_blocks, left.nodes);
    std::abort();
  }
}

void EngineWorld::count_events() {
  const ServiceStats& s = crowd_.engine().stats();
  report_.features["parked"] += s.preemptions_parked;
  report_.features["recomputed"] += s.preemptions_recompute;
  report_.features["step ahead"] += s.steps_ahead;
  count_drafts(s.drafts);
  report_.features["evicted"] += s.cache.evicted_blocks;
  report_.features["two tiers"] += s.tiers.size() > 1;
  report_.features["blocks moved"] += s.cache.blocks_moved;
  for (const TierLinkStats& t : s.tiers) {
    report_.features["written to a tier"] += t.down.blocks;
    report_.features["read in vain"] += t.failed_loads;
  }
  report_.steps += s.steps;
  report_.rows += s.step_rows;
  report_.alone_steps += alone_.steps();
}

EngineSimReport EngineWorld::run() {
  place = {options_.seed, 0};
  while (place.step < options_.steps) {
    // Steps are submitted ahead while nobody arrives.
    const double often = live_.size() < 4 ? 0.5 : 0.1;
    if (random_.chance(theme_ == Theme::greedy ? often / 8 : often)) arrive();
    trouble();
    step();
  }
  finish_all();
  count_events();
  report_.worlds = 1;
  return std::move(report_);
}

EngineSimReport simulate_engine(const EngineSimOptions& options) {
  return EngineWorld(options).run();
}

}  // namespace quire
