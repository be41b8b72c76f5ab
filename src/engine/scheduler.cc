#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

TenantId WaitingLine::tenant(std::string_view name) {
  const auto [it, fresh] =
      by_name_.try_emplace(std::string(name), static_cast<TenantId>(tenants_.size()));
  if (fresh) tenants_.push_back({.name = it->first, .line = {}});
  return it->second;
}

void WaitingLine::add(JobId id, const Entry& entry) {
  CHECK(entries_.try_emplace(id, Place{.entry = entry}).second);
  Tenant& t = at(entry.tenant);
  if (t.line.empty()) {
    t.turn = std::max(t.turn, now_turn_);  // being away earns no credit
    turns_.emplace(t.turn, entry.tenant);
  }
  t.line.insert(standing(id, entry));
}

void WaitingLine::remove(JobId id) {
  const auto it = entries_.find(id);
  CHECK(it != entries_.end());
  const Entry& entry = it->second.entry;
  Tenant& t = at(entry.tenant);
  t.line.erase(standing(id, entry));
  if (t.line.empty()) turns_.erase({t.turn, entry.tenant});
  entries_.erase(it);
}

void WaitingLine::charge(TenantId tenant, std::uint64_t tokens) {
  Tenant& t = at(tenant);
  t.served += tokens;
  if (t.line.empty()) {
    t.turn += tokens;
    return;
  }
  turns_.erase({t.turn, tenant});
  t.turn += tokens;
  turns_.emplace(t.turn, tenant);
}

void WaitingLine::waiting(std::vector<TenantId>& tenants) const {
  tenants.clear();
  for (const auto& [turn, tenant] : turns_) {
    if (tenants.size() >= options_.tenants_tried) return;
    tenants.push_back(tenant);
  }
}

std::optional<JobId> WaitingLine::pick(const std::function<Readiness(JobId)>& probe) {
  skipped_.clear();
  std::uint32_t tried = 0;
  for (auto it = turns_.begin(); it != turns_.end() && tried < options_.tenants_tried; ++it) {
    JobId found{};
    switch (pick_of(at(it->second), probe, found)) {
      case Found::one:
        for (Place* p : skipped_) ++p->passed;
        now_turn_ = std::max(now_turn_, it->first);
        remove(found);
        return found;
      case Found::blocked:
        return {};
      case Found::nobody:
        ++tried;
    }
  }
  return {};
}

WaitingLine::Found WaitingLine::pick_of(Tenant& tenant,
                                        const std::function<Readiness(JobId)>& probe,
                                        JobId& found) {
  const std::size_t skipped_before = skipped_.size();
  std::size_t skipped_by_best = skipped_before;
  std::uint32_t looked = 0, best_cached = 0;
  bool any = false;
  for (auto it = tenant.line.begin(); it != tenant.line.end() && looked < options_.window;
       ++it, ++looked) {
    Place& place = entries_.at(it->id);
    const Readiness p = probe(it->id);
    if (p.verdict == Readiness::Verdict::later) continue;
    const bool due = place.passed >= options_.passes_max;
    if (p.verdict == Readiness::Verdict::no_room) {
      if (due && !any) return Found::blocked;
      if (due) break;  // who stands before it may go, nobody behind
    } else if (!any || p.cached > best_cached || due) {
      any = true;
      found = it->id;
      best_cached = p.cached;
      skipped_by_best = skipped_.size();
      if (due) break;  // the first that has been passed often enough goes before all behind it
    }
    skipped_.push_back(&place);
  }
  // The jobs before the chosen one were passed. If none was chosen, other tenants take this
  // tenant's turn, which passes its first job.
  skipped_.resize(any ? skipped_by_best : std::min(skipped_.size(), skipped_before + 1));
  return any ? Found::one : Found::nobody;
}

std::optional<std::size_t> pick_victim(std::span<const Running> running) {
  if (running.size() < 2) return {};
  const auto first = std::ranges::min_element(running, {}, &Running::standing);
  std::optional<std::size_t> last;
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (running[i].protect || &running[i] == &*first) continue;
    if (!last || running[i].standing > running[*last].standing) last = i;
  }
  return last;
}

PreemptLoss loss_of_recompute(const GivingWay& g) {
  const double unfinished = g.length - g.whole, cached = g.cached + g.whole;
  const double taken = std::clamp(g.wanted - g.free - unfinished, 0.0, cached);
  const double share = cached > 0 ? taken / cached : 0;
  return {.own = unfinished + share * g.whole, .others = share * g.cached * g.reuse};
}

PreemptLoss loss_of_park(const GivingWay& g) {
  const double taken = std::max(0.0, g.wanted - g.free);
  PreemptLoss loss{.others = std::min(taken, g.cached) * g.reuse};
  if (taken > g.cached)  // then it is unparked: the unfinished block goes, whole ones as needed
    loss.own = std::min(g.length, std::max(g.length - g.whole, taken - g.cached));
  return loss;
}

void share_rows(std::uint32_t budget, std::span<Reading> readings,
                std::vector<std::uint32_t>& order) {
  order.resize(readings.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto length = [&](std::uint32_t i) {
    return static_cast<std::int64_t>(readings[i].remaining) -
           static_cast<std::int64_t>(readings[i].steps) * (budget / 4 + 1);
  };
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return length(a) != length(b) ? length(a) < length(b) : a < b;
  });
  std::uint32_t left = budget;
  for (const std::uint32_t i : order) {
    Reading& r = readings[i];
    r.rows = std::min({r.remaining, r.rows_max, left});
    if (r.rows + r.loose < r.remaining) r.rows = r.rows / r.together * r.together;
    left -= r.rows;
  }
}

}  // namespace quire
