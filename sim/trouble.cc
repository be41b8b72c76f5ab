// Everything that can go wrong for a request.
#include <algorithm>

#include "sim/world.h"

namespace quire {

// A step did not fit: a sequence must be preempted.
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
  if (running == 1 && pending_.empty() && !faults) {
    waived_ = waived_ || cache_->waive_shares();
    return;
  }
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
      l.pure_until = l.sequence.pure_until();
      for (std::uint32_t t = l.sequence.length(); t < l.script.size(); ++t)
        l.rows.set(t, mix64(l.rows.at(t) ^ l.id));
      for (PendingStep& s : pending_)
        for (PendingItem& i : s.items)
          if (i.id == l.id) i.rows = l.rows;
    }
    return;
  }
  ++report_.cancelled;
  close(l);
}

// A retainer: every lane keeps tokens of its own choice; later tokens read only these.
void Simulator::compact() {
  Live* l = pick(false);
  if (!l) return;
  const Geometry& geometry = trees_[l->root].geometry;
  const LayerGroup& group = geometry.groups[0];
  const std::uint32_t end = l->sequence.length() / kBlock * kBlock,
                      old_end = cache_->ragged_until(l->sequence, 0);
  if ((group.kind != GroupKind::full && group.kind != GroupKind::latent) || end == 0) return;
  if (group.sealed()) return;  // the toy's codes are not slots
  std::vector<std::vector<std::uint32_t>> keep(group.lanes());
  for (std::uint32_t lane = 0; lane < group.lanes(); ++lane) {
    const double share = random_.chance(0.3) ? 1 : random_.unit();  // all: whole pages
    const LaneView kept = cache_->lane(l->sequence, 0, lane);
    for (std::uint32_t i = 0; i < kept.slots; ++i)
      if (random_.chance(share)) keep[lane].push_back(kept.positions[i]);
    for (std::uint32_t t = old_end; t < end; ++t)
      if (random_.chance(share)) keep[lane].push_back(t);
  }
  const std::vector<std::span<const std::uint32_t>> spans(keep.begin(), keep.end());
  const Status done = cache_->compact(l->sequence, 0, end, spans);
  if (!done.ok()) {
    CHECK(done.error().code == Code::exhausted);
    return;
  }
  ++report_.compactions;
  CHECK(cache_->ragged_until(l->sequence, 0) == end);
  l->pure_until = l->sequence.pure_until();
  for (std::uint32_t t = l->sequence.length(); t < l->script.size(); ++t)
    l->rows.set(t, mix64(l->rows.at(t) ^ l->id));
  check_reads(*l, l->sequence.length());
  if (end == 0 || random_.chance(0.5)) return;
  const auto lane = static_cast<std::uint32_t>(random_.below(group.lanes()));
  const LaneView kept = cache_->lane(l->sequence, 0, lane);
  cache_->shrink_lane(l->sequence, 0, lane,
                      static_cast<std::uint32_t>(random_.below(kept.slots + 1)));
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
  const TenantInfo tenant = cache_->tenant(tenant_name(l->root));
  if (tenant.limits.leases > 0) CHECK(tenant.leases <= tenant.limits.leases);
  if (tenant.limits.pin_bytes > 0 && r.pin) CHECK(tenant.pinned_bytes <= tenant.limits.pin_bytes);
  const LeaseInfo info = cache_->lease_info(id.value()).value();
  Pin pin{id.value(), {}, r.pin, info.expires};
  for (std::uint32_t b = r.first_token / kBlock; b < r.first_token / kBlock + info.tokens / kBlock;
       ++b)
    pin.keys.push_back(l->keys[b].prefix());
  CHECK(pin.keys.back() == info.node.prefix() && info.tenant == tenant_name(l->root));
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

}  // namespace quire
