#include "base/check.h"
#include "sim/engine_world.h"

namespace quire {

// Tokens of a request's prompt that the cache holds now.
std::uint32_t EngineWorld::cached_tokens(std::uint64_t ask) {
  const Request r = asks_.make(ask);
  const KeyChange salt{.position = 0, .kind = ChangeKind::salt, .value = r.kv.salt};
  const Result<RootId> root = crowd_.runtime().tenant_root(r.kv.tenant, r.kv.storage.get());
  Result<Sequence> probe =
      crowd_.cache().open({.root = root.value(),
                           .token_capacity = static_cast<std::uint32_t>(r.prompt.size()),
                           .publish = false,
                           .changes = {&salt, r.kv.salt.empty() ? 0u : 1u}});
  if (!probe.ok()) return 0;
  crowd_.cache().place(probe.value(), r.prompt);
  return crowd_.cache().peek(probe.value()).tokens;
}

// What is there of the prompt when its request ends is what was pinned, if all of it was.
void EngineWorld::keep_leases(const Live& l) {
  const Request r = asks_.make(l.ask);
  const bool whole = r.kv.retention.size() == 1 && r.kv.retention[0].pin &&
                     r.kv.retention[0].ttl == 0 && !r.kv.retain && !r.kv.select && !r.kv.blend &&
                     !r.kv.convert && r.kv.write != KvWrite::none;
  for (const LeaseId id : l.told->result->leases)
    leases_.push_back({id, l.ask, whole ? cached_tokens(l.ask) / kToyBlock * kToyBlock : 0});
}

void EngineWorld::check_pins() {
  for (const Lease& lease : leases_) {
    if (lease.tokens == 0) continue;
    ++report_.features["pin checked"];
    CHECK(cached_tokens(lease.ask) >= lease.tokens);
  }
}

}  // namespace quire
