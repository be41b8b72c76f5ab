#include "engine/shared_cache.h"

#include <algorithm>

#include "engine/engine.h"
#include "engine/runtime.h"

namespace quire {
namespace {

// A note that a request waits for room is renewed with every step; an older one means nothing.
constexpr Nanoseconds kWaitingNoteLasts = 1'000'000'000;

}  // namespace

Result<std::shared_ptr<SharedCache>> SharedCache::make(const RuntimeOptions& options) {
  CHECK(options.kv_cache_bytes > 0);
  std::shared_ptr<SharedCache> shared(new SharedCache());
  TRY(std::unique_ptr<Memory> memory, reserve_to_grow(options.kv_cache_bytes));
  shared->budget_bytes_ = options.kv_cache_bytes;
  shared->memory_page_ = memory->page_bytes();
  CacheOptions cache{.budget_bytes = options.kv_cache_bytes,
                     .tokens_per_block = options.tokens_per_block,
                     .evictor = options.evictor,
                     .secret = shared->secret_,
                     .pin_budget = options.pin_budget,
                     .tenant_pin_share = options.tenant_pin_share};
  shared->cache_ = std::make_shared<KvCache>(cache, std::move(memory), shared->clock_);
  return shared;
}

void SharedCache::lock() {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = next_++;
  changed_.wait(lock, [&] { return serving_ == mine; });
}

void SharedCache::unlock() {
  {
    const std::lock_guard lock(mutex_);
    ++serving_;
  }
  changed_.notify_all();
}

void SharedCache::leave(Engine& engine) {
  std::erase(engines_, &engine);
  if (waiting_.engine == &engine) waiting_ = {};
}

bool SharedCache::others_run(const Engine& self) const {
  return std::ranges::any_of(engines_,
                             [&](const Engine* e) { return e != &self && !e->resting(); });
}

bool SharedCache::take_room(const Engine& self, Nanoseconds submitted) {
  return std::ranges::any_of(engines_,
                             [&](Engine* e) { return e != &self && e->give_way(submitted); });
}

void SharedCache::waits_for_room(const Engine& self, Nanoseconds submitted, Nanoseconds now) {
  const bool stale = waiting_.engine == nullptr || now - waiting_.noted > kWaitingNoteLasts;
  if (stale || submitted < waiting_.submitted)
    waiting_ = {&self, submitted, now};
  else if (waiting_.engine == &self)
    waiting_.noted = now;
}

bool SharedCache::another_waits(const Engine& self, Nanoseconds submitted, Nanoseconds now) const {
  return waiting_.engine != nullptr && waiting_.engine != &self && waiting_.submitted < submitted &&
         now - waiting_.noted <= kWaitingNoteLasts;
}

}  // namespace quire
