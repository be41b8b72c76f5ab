#include "sim/engine_sim.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/check.h"
#include "sim/engine_world.h"

namespace quire {
namespace {

EngineSimPlace place;

// From one that answers at once to one that takes longer than computing. Most are a little faster: what
// they load is on its way for several steps.
void draw_tier(Random& random, ToyEngineOptions& o) {
  MemoryTierOptions& tier = o.tier.emplace();
  constexpr double kRates[] = {1e5, 1e7, 2e7, 4e7, 1e8, 1e10};
  tier.bytes_per_s = kRates[random.below(std::size(kRates))];
  if (random.chance(0.5)) tier.first_byte_ns = static_cast<Nanoseconds>(random.below(100'000));
  if (random.chance(0.3)) tier.first_byte_ns = static_cast<Nanoseconds>(random.below(5'000'000));
  if (random.chance(0.3)) tier.fail_chance = 0.05;
  if (random.chance(0.3)) tier.corrupt_chance = 0.05;
  if (random.chance(0.3)) tier.lose_chance = 0.1;
  if (random.chance(0.3)) tier.traits.capacity_bytes = o.cache_bytes / 2;
  tier.seed = random.next();
  o.tier_write = static_cast<TierWrite>(random.below(4));
}

ToyEngineOptions draw_opened(Random& random, bool greedy) {
  ToyEngineOptions o;
  o.model = random.chance(0.2) ? ToyModel::windows : ToyModel::full;
  constexpr const char* kEvictors[] = {"odds", "cost", "lru"};
  o.evictor = kEvictors[random.below(3)];
  o.cache_bytes = (random.chance(0.25) ? 1500 : 220 + random.below(300)) * 1024;
  o.draws = random.chance(0.3);
  if (random.chance(0.15)) o.nodes = 64;
  if (random.chance(0.15)) o.key_bits = 2;
  if (o.model == ToyModel::windows) o.cache_bytes *= 2;
  // Names of records are made of keys: where these are equal by design, there is no tier.
  if (random.chance(0.4) && o.key_bits == 256) draw_tier(random, o);
  // Slabs of several blocks, which must be emptied by moving some: while steps run ahead, or while
  // others arrive.
  if (random.chance(greedy || o.tier ? 0.7 : 0.3)) {
    o.page_bytes = 16384;
    o.cache_bytes = o.cache_bytes * 3 / 2;
  }
  return o;
}

ServiceOptions draw_service(Random& random, bool greedy) {
  ServiceOptions o;
  o.step_tokens = 16 + static_cast<std::uint32_t>(random.below(100));
  if (random.chance(0.5)) o.prompt_tokens = 8 + static_cast<std::uint32_t>(random.below(40));
  o.sequences_max = 4 + static_cast<std::uint32_t>(random.below(12));
  o.preemptions_max = static_cast<std::uint32_t>(random.below(6));
  if (random.chance(0.5)) o.preempt = random.chance(0.5) ? Preempt::park : Preempt::recompute;
  o.requests_kept = 16;
  o.ahead = random.chance(greedy ? 0.9 : 0.6);
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
      random_(mix64(options.seed ^ 0x656e67696e65)),
      opened_(draw_opened(random_, Asks::are_greedy(options.seed))),
      crowded_(random_.chance(0.25)),
      memory_fails_(!crowded_ && random_.chance(0.2)),
      resizes_(!crowded_ && random_.chance(opened_.tier ? 0.8 : 0.5)),
      limits_(!crowded_ && random_.chance(0.35)),
      draft_random_(mix64(options.seed ^ 0x647261667473)),
      crowd_(opened_, with_drafts(draw_service(random_, Asks::are_greedy(options.seed)))),
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
  if (MemoryTier* tier = crowd_.tier()) {
    if (random_.chance(0.04)) crowd_.cache().clear(false);  // what comes next is in the tier
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
  if (resizes_ && random_.chance(0.1)) {
    crowd_.cache().resize(opened_.cache_bytes * (5 + random_.below(6)) / 10);
    ++report_.features["cache resized"];
  }
  if (!memory_fails_ || !random_.chance(0.05)) return;
  if (random_.chance(0.4)) {
    crowd_.memory().fail_after(random_.below(8));
    ++report_.features["memory failed"];
  } else {
    crowd_.memory().never_fail();
  }
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

// Trouble stops. Whoever is here finishes, and nothing is left behind.
void EngineWorld::finish_all() {
  crowd_.trouble().lost = crowd_.trouble().nan = 0;
  crowd_.memory().never_fail();
  if (crowd_.tier()) crowd_.tier()->set_down(false);
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
  const bool greedy = Asks::are_greedy(options_.seed);
  while (place.step < options_.steps) {
    // Steps are submitted ahead while nobody arrives.
    const double often = live_.size() < 4 ? 0.5 : 0.1;
    if (random_.chance(greedy ? often / 8 : often)) arrive();
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
