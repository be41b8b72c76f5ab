#include "kv/cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/core.h"
#include "kv/planted.h"

namespace quire {
namespace {

// Blocks are at least this large in practice. Bookkeeping takes no memory until it is touched, so a
// low guess costs nothing.
constexpr std::uint64_t kSmallestBlock = 256;

std::uint32_t blocks_max(std::uint64_t reserved_bytes) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(reserved_bytes / kSmallestBlock, 1024, 1u << 26));
}

PrefixStoreOptions store_options(const CacheOptions& o, std::uint64_t reserved_bytes) {
  const Result<const EvictPolicy*> policy = find_evict_policy(o.evictor);
  CHECK(policy.ok());
  return {.node_capacity = o.node_capacity ? o.node_capacity : 1u << 20,
          .tokens_per_block = o.tokens_per_block,
          .blocks_max = blocks_max(reserved_bytes),
          .ghost_capacity = o.ghost_capacity,
          .tenants_max = 2 * o.roots_max,  // half of them with limits and nothing else
          .policy = policy.value(),
          .below = o.below};
}

}  // namespace

CacheCore::CacheCore(const CacheOptions& o, std::unique_ptr<Memory> memory, const Clock& time)
    : options(o),
      clock(time),
      journal(o.journal_capacity),
      arena(std::move(memory), {.budget_bytes = o.budget_bytes, .poison = o.poison}),
      pool(arena, {.blocks_max = blocks_max(arena.memory().reserved_bytes())}),
      store(store_options(o, arena.memory().reserved_bytes()), pool, journal),
      steps(o.steps_max),
      lease_expiry(kLeasesMax) {
  for (Step& s : steps) s.items.reserve(o.step_items_max);
  wants.reserve(std::size_t{o.step_items_max} * kGroupsMax);
  store.tenants().set_budget(o.budget_bytes);
  free_sequences.reserve(o.sequences_max);
  sequences.reserve(o.sequences_max);
}

CacheCore::~CacheCore() {
  CHECK(open_sequences == 0);
  for (const Step& s : steps) CHECK(!s.live);
}

Nanoseconds CacheCore::tick() {
  const Nanoseconds now = clock.now();
  store.set_now(now);
  return now;
}

Result<SequenceState*> CacheCore::open(const SequenceOptions& o) {
  if (!find_root(o.root)) return Error{Code::invalid, "no such root in this cache"};
  if (o.token_capacity == 0)
    return Error{Code::invalid, "a sequence needs room for at least one token"};
  if (free_sequences.empty()) {
    if (sequences.size() >= options.sequences_max)
      return Error{Code::exhausted,
                   fmt::format("{} sequences are open; close some", sequences.size())};
    sequences.push_back(std::make_unique<SequenceState>());
    sequences.back()->slot = static_cast<std::uint32_t>(sequences.size() - 1);
    free_sequences.push_back(sequences.back()->slot);
  }
  SequenceState& s = *sequences[free_sequences.back()];
  free_sequences.pop_back();
  ++open_sequences;
  Root& root = at(o.root);
  ++root.users;
  store.tenants().add_user(store.tenant(root.node));
  const std::uint32_t block_capacity =
      (o.token_capacity + options.tokens_per_block - 1) / options.tokens_per_block;
  s.core = this;
  ++s.serial;
  s.phase = Phase::fresh;
  s.options = o;
  s.options.changes = {};
  s.options.priority = std::min<std::uint8_t>(o.priority, 100);
  s.layout = root.layout;
  s.root_key = root.key;
  s.tokens.clear();
  s.tokens.reserve(o.token_capacity);
  s.keys.clear();
  s.keys.reserve(block_capacity);
  s.changes.assign(o.changes.begin(), o.changes.end());
  s.tags.clear();
  for (std::uint32_t g = 0; g < root.layout->group_count; ++g) {
    const std::size_t entries = root.layout->state >> g & 1 ? 1 : block_capacity;
    s.tables[g].refs.reserve(entries);
    s.tables[g].offsets.reserve(entries);
  }
  s.cursor.root = root.node;
  s.cursor.path.clear();
  s.cursor.path.reserve(block_capacity);
  s.length = s.prompt_length = s.published = s.computed = s.reserved = s.steps = 0;
  s.pure_until = UINT32_MAX;
  s.moves_seen = store.moves();
  s.faulted = false;

  // One tag per block with changes, a digest of all its changes. Blocks with different tags share
  // nothing, not even a part.
  if (planted(Bug::drop_salt)) s.changes.clear();
  for (std::size_t i = 0; i < s.changes.size();) {
    const std::uint32_t block = s.changes[i].position / options.tokens_per_block;
    std::string text;
    for (; i < s.changes.size() && s.changes[i].position / options.tokens_per_block == block; ++i) {
      const KeyChange& c = s.changes[i];
      text += fmt::format("{} {} {} ", c.position, static_cast<int>(c.kind), c.value.size());
      text += c.value;
    }
    s.tags.push_back({block, BlockKey{sha256(text)}.prefix() | 1});
  }
  return &s;
}

void CacheCore::close(SequenceState& s) {
  CHECK(s.phase != Phase::closed);
  tick();
  if (s.phase == Phase::parked) unpark(s);
  if (s.phase == Phase::placed) store.remove(s.cursor);
  if (s.phase == Phase::running) {
    release_blocks(s);
    set_path(s, 0);
  }
  s.phase = Phase::closed;
  s.options.adapters.reset();
  ++s.serial;
  --open_sequences;
  store.tenants().remove_user(store.tenant(s.cursor.root));
  leave_root(s.options.root);
  free_sequences.push_back(s.slot);
}

// The facade
// ----------------------------------------------------------------------------------------------------------

KvCache::KvCache(const CacheOptions& options, std::unique_ptr<Memory> memory, const Clock& clock)
    : core_(std::make_unique<CacheCore>(options, std::move(memory), clock)) {}
KvCache::~KvCache() = default;

std::byte* KvCache::arena() const { return core_->arena.base(); }

Result<Sequence> KvCache::open(const SequenceOptions& options) {
  core_->tick();
  TRY(SequenceState * state, core_->open(options));
  return Sequence(state);
}
void KvCache::place(Sequence& s, std::span<const TokenId> prompt, std::span<const BlockKey> keys) {
  core_->tick();
  core_->place(*s.state_, prompt, keys);
}
Attached KvCache::attach(Sequence& s, std::span<const TokenId> prompt,
                         std::span<const BlockKey> keys) {
  place(s, prompt, keys);
  return attach(s);
}
Attached KvCache::peek(const Sequence& s) const { return core_->peek(*s.state_); }
Attached KvCache::attach(Sequence& s) {
  poll();
  return core_->attach(*s.state_);
}
Result<Reservation> KvCache::reserve(std::span<const StepNeed> needs) {
  poll();
  core_->pool.tidy();
  TRY(const std::uint32_t step, core_->reserve(needs));
  return Reservation(core_.get(), step);
}
Result<Sequence> KvCache::fork(const Sequence& s, std::uint32_t token_capacity) {
  core_->tick();
  TRY(SequenceState * state, core_->fork(*s.state_, token_capacity));
  return Sequence(state);
}
void KvCache::extend(Sequence& s, std::span<const TokenId> tokens) {
  SequenceState& state = *s.state_;
  CHECK(state.phase == Phase::running && state.steps == 0 && state.length == state.tokens.size());
  CHECK(state.length + tokens.size() <= state.options.token_capacity);
  state.tokens.insert(state.tokens.end(), tokens.begin(), tokens.end());
  state.prompt_length = static_cast<std::uint32_t>(state.tokens.size());
  if (state.options.inline_keys) core_->compute_keys(state);
}
std::uint32_t KvCache::truncate(Sequence& s, std::uint32_t length) {
  core_->tick();
  return core_->truncate(*s.state_, length);
}
void KvCache::preempt(Sequence& s, Preempt how) {
  core_->tick();
  core_->preempt(*s.state_, how);
}
void KvCache::snapshot(Sequence& s) {
  core_->tick();
  core_->snapshot(*s.state_);
}
std::uint64_t KvCache::resize(std::uint64_t budget_bytes) {
  poll();
  return core_->resize(budget_bytes);
}
void KvCache::set_recompute_cost(double token_ns, double token_position_ns) {
  core_->store.set_cost({token_ns, token_position_ns});
}
void KvCache::poll() {
  core_->tick();
  core_->expire_leases();
  core_->store.expire();
}
bool KvCache::prepare(std::uint64_t ahead_bytes) { return core_->arena.prepare(ahead_bytes); }
const Journal& KvCache::journal() const { return core_->journal; }
void KvCache::note(JournalRecord record) {
  record.time = core_->tick();
  core_->journal.add(record);
}

Reservation::~Reservation() {
  if (core_) core_->end_step(step_);
}
std::size_t Reservation::size() const { return core_->steps[step_].items.size(); }
std::uint32_t Reservation::past(std::size_t item) const {
  return core_->steps[step_].items[item].base;
}
std::uint32_t Reservation::count(std::size_t item) const {
  return core_->steps[step_].items[item].count;
}
KvSequenceView Reservation::view(std::size_t item, std::uint32_t group,
                                 std::uint32_t first_row) const {
  const CacheCore::Item& i = core_->steps[step_].items[item];
  return i.sequence->tables[group].view(i.sequence->tokens_per_block(), first_row, i.count, i.base);
}
std::uint32_t Reservation::commit(std::size_t item, std::span<const TokenId> accepted) {
  return core_->commit(step_, item, accepted);
}
std::uint32_t Reservation::commit(std::size_t item, std::uint32_t accepted) {
  const CacheCore::Item& i = core_->steps[step_].items[item];
  CHECK(i.base + accepted <= i.sequence->tokens.size());
  return core_->commit(step_, item, std::span(i.sequence->tokens).subspan(i.base, accepted));
}

// Sequence
// ------------------------------------------------------------------------------------------------------------

void Sequence::close() {
  if (state_) state_->core->close(*std::exchange(state_, nullptr));
}
std::span<const TokenId> Sequence::tokens() const { return state_->tokens; }
std::uint32_t Sequence::length() const { return state_->length; }
std::uint32_t Sequence::reserved() const { return state_->reserved; }
std::uint32_t Sequence::prompt_length() const { return state_->prompt_length; }
std::uint32_t Sequence::published_blocks() const { return state_->published; }
std::uint32_t Sequence::pure_until() const { return state_->pure_until; }
RootId Sequence::root() const { return state_->options.root; }
const std::shared_ptr<const AdapterSet>& Sequence::adapters() const {
  return state_->options.adapters;
}
std::uint32_t Sequence::adapted_from() const { return state_->options.adapted_from; }
const ArenaOffset* Sequence::table(std::uint32_t group) const {
  state_->core->refresh_offsets(*state_);
  return state_->tables[group].offsets.data();
}
void Sequence::supply_keys(std::span<const BlockKey> keys) {
  CHECK((state_->keys.size() + keys.size()) * state_->tokens_per_block() <= state_->tokens.size());
  state_->core->supply_keys(*state_, keys);
}
std::uint32_t Sequence::keys_known() const {
  return static_cast<std::uint32_t>(state_->keys.size());
}
void Sequence::limit_purity(std::uint32_t token) {
  state_->pure_until = std::min(state_->pure_until, token);
  // No sequence may wait for blocks that will not be published.
  if (state_->phase == Phase::running)
    state_->core->set_path(*state_,
                           std::max(state_->published, token / state_->tokens_per_block()));
}
void Sequence::mark_faulted() {
  state_->faulted = true;
  limit_purity(state_->published * state_->tokens_per_block());
}
bool Sequence::faulted() const { return state_->faulted; }

}  // namespace quire
