#include "sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/cache.h"
#include "kv/evict/evict.h"
#include "kv/test_model.h"
#include "sim/reference.h"

namespace quire {
namespace {

constexpr std::uint32_t kBlock = 4, kPage = 4096, kTokensMax = 48, kLiveMax = 12;

SimPlace place_now{};

// One request and what must be true of it.
struct Live {
  std::uint64_t id = 0;
  std::size_t root = 0;
  Sequence sequence;
  std::vector<TokenId> script;  // prompt and everything it will generate
  std::vector<KeyChange> salts;
  std::vector<std::uint64_t> changes;  // digest per block, as the reference knows it
  std::vector<BlockKey> keys;          // of the script's whole blocks
  History rows;                        // what each row must say
  std::uint32_t prompt = 0, target = 0, pure_until = UINT32_MAX, computed = 0;
  std::uint32_t in_steps = 0;
  std::uint32_t waits = 0;
  bool placed = false, own_keys = false, publish = true, reuse = true, faulted = false;
};

struct PendingItem {
  std::uint64_t id;
  std::uint32_t past, count, accept;
};
struct PendingStep {
  std::optional<Reservation> room;
  std::vector<PendingItem> items;
};

class Simulator {
 public:
  explicit Simulator(const SimOptions& o);
  SimReport run();

 private:
  struct Tree {
    RootId id;
    Geometry geometry;
    std::uint64_t identity;
    BlockKey key;
  };

  void turn(bool faults);
  void arrive();
  void admit(bool patient);
  void attach(Live& l);
  void start_step(bool faults);
  void finish_step();
  void relieve(bool faults);
  void fork();
  void truncate();
  void cancel();
  void preempt_random();
  void leases();
  void memory_events();
  void check_reads(const Live& l, std::uint32_t past);
  void check_attached(const Live& l, const Attached& got, std::uint32_t limit);
  void follow_journal();
  void balance();
  void drain();
  void learn(Live& l);
  void give_keys(Live& l);
  void close(Live& l);
  Live* pick(bool placed);
  Live* find(std::uint64_t id);
  std::uint64_t change_of(const Live& l, std::uint32_t position) const;

  SimOptions options_;
  Random random_;
  ManualClock clock_;
  KeySecret secret_;
  bool truncated_keys_;
  FailingMemory* memory_ = nullptr;
  std::uint64_t budget_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Tree> trees_;
  std::vector<std::vector<TokenId>> families_;
  Reference reference_{kBlock};
  std::vector<std::unique_ptr<Live>> live_;
  std::deque<PendingStep> pending_;
  struct Pin {
    LeaseId id;
    std::vector<std::uint64_t> keys;
    bool pin;
    Nanoseconds expires;
  };
  std::vector<Pin> pins_;
  std::uint64_t next_id_ = 1, journal_seen_ = 0;
  SimReport report_;
};

std::array<std::uint8_t, 64> secret_bytes(std::uint64_t seed) {
  std::array<std::uint8_t, 64> bytes;
  Random r(seed);
  for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(r.next());
  return bytes;
}

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
  };
  const std::size_t tree_count = 2 + random_.below(3);
  for (std::size_t i = 0; i < tree_count; ++i) {
    // Two tenants on one geometry, and then whatever comes.
    const Geometry& g =
        shapes[i < 2 ? o.seed % std::size(shapes) : random_.below(std::size(shapes))];
    RootIdentity identity;
    identity.tenant = "tenant " + std::to_string(i);
    const RootId id = cache_->root(identity, g).value();
    trees_.push_back({id, g, mix64(o.seed * 31 + i), cache_->root_key(id)});
  }
  for (int i = 0; i < 3; ++i) {
    std::vector<TokenId> f;
    for (std::uint32_t t = 0; t < kTokensMax; ++t)
      f.push_back(static_cast<TokenId>(random_.below(3)));
    families_.push_back(std::move(f));
  }
}

std::uint64_t Simulator::change_of(const Live& l, std::uint32_t position) const {
  std::uint64_t change = 0;
  for (const KeyChange& s : l.salts)
    if (s.position == position) change = mix64(change ^ s.value.size());
  return change;
}

// Works out what the request's tokens imply: rows, change digests and keys.
void Simulator::learn(Live& l) {
  const Tree& tree = trees_[l.root];
  l.rows = History(tree.identity);
  l.changes.assign(l.script.size() / kBlock + 1, 0);
  for (std::uint32_t t = 0; t < l.script.size(); ++t) {
    const std::uint64_t change = change_of(l, t);
    l.rows.push(l.script[t], change);
    if (change) l.changes[t / kBlock] = mix64(l.changes[t / kBlock] ^ change ^ t);
  }
  KeyChain chain(secret_, tree.key, kBlock);
  for (const KeyChange& s : l.salts) chain.change(s);
  chain.extend(l.script);
  l.keys.assign(chain.keys().begin(), chain.keys().end());
  if (!truncated_keys_)
    for (std::size_t i = 0; i < l.keys.size(); ++i)
      reference_.learn(l.keys[i], i == 0 ? tree.key.prefix() : l.keys[i - 1].prefix(),
                       std::span(l.script).subspan(i * kBlock, kBlock), l.changes[i]);
  for (std::uint32_t t = l.pure_until; t < l.script.size(); ++t)
    l.rows.set(t, mix64(l.rows.at(t) ^ l.id));
}

void Simulator::arrive() {
  auto made = std::make_unique<Live>();
  Live& l = *made;
  l.id = next_id_++;
  l.root = random_.below(trees_.size());
  const std::vector<TokenId>& family = families_[random_.below(families_.size())];
  const std::size_t shared = random_.below(kTokensMax - 12);
  l.script.assign(family.begin(), family.begin() + static_cast<std::ptrdiff_t>(shared));
  l.prompt = static_cast<std::uint32_t>(shared + 1 + random_.below(6));
  l.target = std::min<std::uint32_t>(kTokensMax,
                                     l.prompt + 1 + static_cast<std::uint32_t>(random_.below(12)));
  while (l.script.size() < kTokensMax) l.script.push_back(static_cast<TokenId>(random_.below(3)));
  if (random_.chance(0.25)) {
    const auto position = static_cast<std::uint32_t>(random_.below(l.prompt));
    const ChangeKind kind = position % kBlock == 0 ? ChangeKind::salt : ChangeKind::media;
    l.salts.push_back({position, kind, random_.chance(0.5) ? "red" : "blue"});
  }
  if (random_.chance(0.1)) l.pure_until = static_cast<std::uint32_t>(random_.below(kTokensMax));
  l.own_keys = random_.chance(0.3);
  l.publish = !random_.chance(0.1);
  l.reuse = !random_.chance(0.05);
  learn(l);
  SequenceOptions o;
  o.root = trees_[l.root].id;
  o.token_capacity = kTokensMax;
  o.reuse = l.reuse;
  o.publish = l.publish;
  o.publish_generated = !random_.chance(0.1);
  o.inline_keys = !l.own_keys;
  o.priority = static_cast<std::uint8_t>(random_.below(101));
  o.ttl = random_.chance(0.2) ? static_cast<Nanoseconds>(random_.below(50)) * 1'000'000 : 0;
  o.changes = l.salts;
  o.request = l.id;
  l.sequence = std::move(cache_->open(o).value());
  const std::span<const BlockKey> keys =
      std::span(l.keys).first(l.own_keys ? random_.below(l.prompt / kBlock + 1) : 0);
  cache_->place(l.sequence, std::span(l.script).first(l.prompt), keys);
  if (l.pure_until != UINT32_MAX) l.sequence.limit_purity(l.pure_until);
  l.placed = true;
  ++report_.requests;
  live_.push_back(std::move(made));
}

// Keys that were computed elsewhere arrive some time after the tokens are known.
void Simulator::give_keys(Live& l) {
  if (!l.own_keys) return;
  const std::size_t known = l.sequence.tokens().size() / kBlock, have = l.sequence.keys_known();
  if (known <= have) return;
  l.sequence.supply_keys(std::span(l.keys).subspan(have, 1 + random_.below(known - have)));
}

Live* Simulator::pick(bool placed) {
  std::size_t count = 0;
  for (const auto& l : live_) count += l->placed == placed && l->in_steps == 0;
  if (count == 0) return nullptr;
  std::size_t nth = random_.below(count);
  for (const auto& l : live_)
    if (l->placed == placed && l->in_steps == 0 && nth-- == 0) return l.get();
  return nullptr;
}

Live* Simulator::find(std::uint64_t id) {
  for (const auto& l : live_)
    if (l->id == id) return l.get();
  return nullptr;
}

void Simulator::close(Live& l) {
  l.sequence.close();
  std::erase_if(live_, [&](const auto& p) { return p.get() == &l; });
}

void Simulator::check_attached(const Live& l, const Attached& got, std::uint32_t limit) {
  CHECK(got.tokens <= limit);
  if (truncated_keys_) return;
  const Geometry& g = trees_[l.root].geometry;
  const std::uint32_t keys = l.reuse ? l.sequence.keys_known() : 0;
  if (!l.reuse) {
    CHECK(got.tokens == 0);
    return;
  }
  const Reference::Served want =
      reference_.served(g, trees_[l.root].key.prefix(), std::span(l.keys).first(keys),
                        l.sequence.tokens(), l.changes, limit);
  const bool chain_only =
      g.groups.size() == 1 && g.groups[0].window == 0 && g.groups[0].kind != GroupKind::state;
  if (got.tokens > want.best || got.tokens < (chain_only ? want.best : want.whole))
    fmt::print(
        stderr,
        "request {} got {} (partial {}, reason {}), best {} whole {}, limit {} keys {} root {}\n",
        l.id, got.tokens, got.partial, reason_name(got.reason), want.best, want.whole, limit, keys,
        l.root);
  CHECK(got.tokens <= want.best && got.tokens >= want.whole);
  if (chain_only) CHECK(got.tokens == want.best);
}

void Simulator::attach(Live& l) {
  follow_journal();
  const std::uint32_t limit = std::min(std::max(l.prompt - 1, l.computed), l.pure_until);
  const bool parked = l.sequence.length() > 0;
  const Attached peeked = cache_->peek(l.sequence);
  const Attached got = cache_->attach(l.sequence);
  CHECK(peeked.tokens == got.tokens && l.sequence.length() == got.tokens);
  if (!parked) check_attached(l, got, limit);
  l.placed = false;
  report_.hit_tokens += got.tokens;
  report_.partial_hits += got.partial > 0;
  check_reads(l, got.tokens);
}

void Simulator::admit(bool patient) {
  Live* l = pick(true);
  if (!l) return;
  give_keys(*l);
  if (patient && l->waits < 20 && cache_->peek(l->sequence).in_flight > 0) {
    ++l->waits;
    ++report_.waited;
    return;
  }
  attach(*l);
}

// Everything a step starting at `past` may look at.
void Simulator::check_reads(const Live& l, std::uint32_t past) {
  const Tree& tree = trees_[l.root];
  for (std::uint32_t g = 0; g < tree.geometry.groups.size(); ++g) {
    const LayerGroup& group = tree.geometry.groups[g];
    if (group.kind == GroupKind::state) {
      if (past > 0 && l.in_steps == 0)
        CHECK(toy_state_matches(cache_->arena(), l.sequence.table(g)[0], l.rows, past));
      continue;
    }
    const std::uint32_t from =
        group.window && past + 1 > group.window ? past + 1 - group.window : 0;
    CHECK(toy_matches(cache_->arena(), tree.geometry, g, l.sequence.table(g), l.rows, from, past));
    report_.rows_checked += past - from;
  }
}

void Simulator::start_step(bool faults) {
  PendingStep step;
  std::vector<StepNeed> needs;
  for (const auto& p : live_) {
    Live& l = *p;
    const bool stateful =
        std::ranges::any_of(trees_[l.root].geometry.groups,
                            [](const LayerGroup& g) { return g.kind == GroupKind::state; });
    if (l.placed || l.in_steps >= (stateful ? 1u : 2u) || needs.size() == 4 || !random_.chance(0.7))
      continue;
    // A second step follows the first only if that one is sure to be accepted as planned.
    std::uint32_t past = l.sequence.length() + l.sequence.reserved();
    bool dead = false;
    for (const PendingStep& s : pending_)
      for (const PendingItem& i : s.items) dead = dead || (i.id == l.id && i.accept < i.count);
    if (past >= l.target) continue;
    const std::uint32_t left = l.target - past;
    const std::uint32_t count = 1 + static_cast<std::uint32_t>(random_.below(std::min(left, 9u)));
    std::uint32_t accept = count;
    if (past + count > l.prompt && faults && random_.chance(0.4))
      accept = static_cast<std::uint32_t>(random_.below(count + 1));
    if (dead) accept = 0;
    needs.push_back({&l.sequence, count});
    step.items.push_back({l.id, past, count, accept});
  }
  if (needs.empty()) return;
  if (pending_.empty())
    for (const PendingItem& i : step.items) check_reads(*find(i.id), i.past);
  const CacheStats before = cache_->stats();
  Result<Reservation> room = cache_->reserve(needs);
  if (!room.ok()) {
    CHECK(room.error().code == Code::exhausted);
    CHECK(cache_->stats().referenced_blocks <= before.referenced_blocks);
    ++report_.refused_steps;
    relieve(faults);
    return;
  }
  step.room.emplace(std::move(room.value()));
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const PendingItem& item = step.items[i];
    Live& l = *find(item.id);
    const Tree& tree = trees_[l.root];
    CHECK(step.room->past(i) == item.past && step.room->count(i) == item.count);
    if (item.past == l.sequence.length()) check_reads(l, item.past);  // after copies and moves
    ++l.in_steps;
    // Rows of rejected tokens are written too, and must never be seen again.
    History written = l.rows;
    for (std::uint32_t t = item.past + item.accept; t < item.past + item.count; ++t)
      written.set(t, mix64(t + l.id));
    for (std::uint32_t g = 0; g < tree.geometry.groups.size(); ++g) {
      const KvSequenceView view = step.room->view(i, g, 0);
      if (tree.geometry.groups[g].kind == GroupKind::state) {
        CHECK(toy_state_matches(cache_->arena(), view.blocks[0], l.rows, item.past));
        toy_write_state(cache_->arena(), view.blocks[0], written, item.past + item.count);
      } else {
        toy_write(cache_->arena(), tree.geometry, g, view, written, item.past,
                  item.past + item.count);
      }
    }
  }
  pending_.push_back(std::move(step));
}

void Simulator::finish_step() {
  if (pending_.empty()) return;
  PendingStep step = std::move(pending_.front());
  pending_.pop_front();
  const bool failed = random_.chance(0.03);
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const PendingItem& item = step.items[i];
    Live* l = find(item.id);
    if (!l) continue;  // cancelled while the step ran
    --l->in_steps;
    const bool follows = l->sequence.length() == item.past;
    const std::uint32_t accept = failed || !follows ? 0 : item.accept;
    if (accept < item.count)  // what was to come after it is void
      for (PendingStep& s : pending_)
        for (PendingItem& later : s.items)
          if (later.id == item.id) later.accept = 0;
    if (accept == 0 && random_.chance(0.5)) continue;
    const std::uint32_t before = l->sequence.length();
    const std::uint32_t length =
        step.room->commit(i, std::span(l->script).subspan(item.past, accept));
    CHECK(length == l->sequence.length() && length >= before && length <= before + accept);
    report_.appended_tokens += length - before;
  }
  step.room.reset();
  for (const PendingItem& item : step.items) {
    Live* l = find(item.id);
    if (!l) continue;
    l->computed = std::max(l->computed, l->sequence.length());
    give_keys(*l);
    if (l->in_steps > 0) continue;
    check_reads(*l, l->sequence.length());
    if (random_.chance(0.3)) {
      cache_->snapshot(l->sequence);
      ++report_.snapshots;
    }
    if (l->sequence.length() >= l->target) {
      ++report_.finished;
      close(*l);
    }
  }
}

// A step did not fit: somebody has to give way.
void Simulator::relieve(bool faults) {
  Live* victim = nullptr;
  std::size_t running = 0;
  for (const auto& l : live_) {
    if (l->placed || l->in_steps > 0) continue;
    ++running;
    if (!victim || l->id > victim->id) victim = l.get();
  }
  if (!victim) return;
  if (faults && random_.chance(0.3)) victim = pick(false);
  if (running == 1 && pending_.empty() && !faults) return;
  ++report_.preempted;
  cache_->preempt(victim->sequence,
                  random_.chance(0.5) && faults ? Preempt::park : Preempt::recompute);
  victim->placed = true;
}

void Simulator::preempt_random() {
  Live* l = pick(false);
  if (!l) return;
  ++report_.preempted;
  cache_->preempt(l->sequence, random_.chance(0.5) ? Preempt::park : Preempt::recompute);
  l->placed = true;
}

void Simulator::fork() {
  Live* l = pick(false);
  if (!l || live_.size() >= kLiveMax) return;
  auto made = std::make_unique<Live>();
  Live& f = *made;
  f.id = next_id_++;
  f.root = l->root;
  f.script = l->script;
  f.salts = l->salts;
  f.prompt = l->prompt;
  f.target = l->target;
  f.own_keys = l->own_keys;
  f.publish = l->publish;
  f.reuse = l->reuse;
  f.faulted = l->faulted;
  f.pure_until = l->pure_until;
  f.computed = l->computed;
  f.sequence = std::move(cache_->fork(l->sequence).value());
  // The future may differ from here on; known tokens may not.
  for (std::size_t t = f.sequence.tokens().size(); t < f.script.size(); ++t)
    f.script[t] = static_cast<TokenId>(random_.below(3));
  learn(f);
  for (std::uint32_t t = 0; t < f.sequence.length(); ++t) f.rows.set(t, l->rows.at(t));
  check_reads(f, f.sequence.length());
  ++report_.forks;
  live_.push_back(std::move(made));
}

void Simulator::truncate() {
  Live* l = pick(false);
  if (!l || l->sequence.tokens().empty()) return;
  const auto to = static_cast<std::uint32_t>(1 + random_.below(l->sequence.tokens().size()));
  const std::uint32_t length = cache_->truncate(l->sequence, to);
  CHECK(length == l->sequence.length() && length <= to && l->sequence.tokens().size() == to);
  l->prompt = std::min(l->prompt, to);
  l->computed = std::min(l->computed, to);
  // What was forgotten may now go on differently.
  const History old = l->rows;
  for (std::size_t t = to; t < l->script.size(); ++t)
    l->script[t] = static_cast<TokenId>(random_.below(3));
  learn(*l);
  for (std::uint32_t t = 0; t < length; ++t) l->rows.set(t, old.at(t));
  check_reads(*l, length);
}

void Simulator::cancel() {
  if (live_.empty()) return;
  Live& l = *live_[random_.below(live_.size())];  // perhaps in the middle of a step
  if (random_.chance(0.3)) {
    if (!l.faulted && !l.placed) {
      l.sequence.mark_faulted();
      l.faulted = true;
    }
    return;
  }
  ++report_.cancelled;
  close(l);
}

void Simulator::leases() {
  if (!pins_.empty() && random_.chance(0.4)) {
    const std::size_t i = random_.below(pins_.size());
    CHECK(cache_->release(pins_[i].id).ok() ||
          (pins_[i].expires != 0 && pins_[i].expires <= clock_.now()));
    pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
  Live* l = pick(random_.chance(0.5));
  if (!l || truncated_keys_) return;
  LeaseRequest r;
  r.first_token = static_cast<std::uint32_t>(random_.below(8));
  r.end_token = r.first_token + static_cast<std::uint32_t>(random_.below(30));
  r.ttl = random_.chance(0.7) ? 1 + static_cast<Nanoseconds>(random_.below(200)) * 1'000'000 : 0;
  r.priority = static_cast<std::uint8_t>(random_.below(101));
  r.pin = random_.chance(0.6);
  Result<LeaseId> id = cache_->lease(l->sequence, r);
  if (!id.ok()) return;
  ++report_.pins;
  const LeaseInfo info = cache_->lease_info(id.value()).value();
  Pin pin{id.value(), {}, r.pin, info.expires};
  for (std::uint32_t b = r.first_token / kBlock; b < r.first_token / kBlock + info.tokens / kBlock;
       ++b)
    pin.keys.push_back(l->keys[b].prefix());
  CHECK(pin.keys.back() == info.node.prefix());
  pins_.push_back(std::move(pin));
}

void Simulator::memory_events() {
  switch (random_.below(6)) {
    case 0:
    case 1: {
      const std::uint64_t budget = kPage * (4 + random_.below(20));
      const std::uint64_t reached = cache_->resize(budget);
      CHECK(reached >= budget);
      ++report_.resizes;
      break;
    }
    case 2:
      memory_->fail_after(random_.below(3));
      break;
    case 3:
      memory_->never_fail();
      break;
    case 4: {
      if (random_.chance(0.2)) {
        cache_->clear(false);
      } else if (Live* l = pick(random_.chance(0.5)); l && !l->keys.empty()) {
        (void)cache_->evict(l->keys[random_.below(l->keys.size())]).ok();
      }
      break;
    }
    case 5:
      clock_.advance(static_cast<Nanoseconds>(random_.below(100)) * 1'000'000);
      break;
  }
}

// What the cache says it did, applied to the flat map; and what it may not do.
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
      if (l->placed || !chain) continue;
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
  }
  admit(true);
  if (pending_.size() < 2) start_step(faults);
  if (pending_.size() == 2 || !faults || random_.chance(0.7)) finish_step();
  balance();
  if (random_.chance(1.0 / 32)) cache_->check();
  ++report_.turns;
  place_now.turn = report_.turns;
  if (work != report_.appended_tokens + report_.hit_tokens + report_.evicted_blocks +
                  report_.forks + report_.moves)
    ++report_.steps;
}

// Faults stop: everything admitted finishes in a bounded number of turns, and everything comes
// home.
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

}  // namespace

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
  snapshots += o.snapshots;
  deduplicated += o.deduplicated;
}

SimReport simulate(const SimOptions& options) { return Simulator(options).run(); }

SimPlace sim_place() { return place_now; }

}  // namespace quire
