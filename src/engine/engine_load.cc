// Prompts whose blocks come from a tier: what it has, how much of it is worth loading, and waiting for it.
#include <algorithm>
#include <thread>

#include "engine/engine.h"
#include "engine/load_plan.h"
#include "kv/below.h"

namespace quire {
namespace {

// How long a prompt waits for a tier that does nothing: a twentieth of what computing takes. Where
// that is not known yet, long enough for a busy machine.
constexpr double kShareOfComputing = 0.05;
constexpr Nanoseconds kPatienceLeast = 10'000'000, kPatienceMost = 500'000'000,
                      kPatienceUnknown = 300'000'000;

Nanoseconds patience(const PrefillCost& cost, double from, double to) {
  if (!cost.known()) return kPatienceUnknown;
  return std::clamp(static_cast<Nanoseconds>(kShareOfComputing * cost.ns(from, to)), kPatienceLeast,
                    kPatienceMost);
}

}  // namespace

void Engine::drain_below() {
  if (TierLink* link = runtime_.tiers())
    link->drain([this](const BlockKey& key, std::uint32_t group) {
      runtime_.cache().not_below(key, group);
    });
}

// When a request comes, not when its turn comes.
void Engine::look_below(Job& job) {
  if (!job.records || job.records->blocks() == 0) return;
  TierLink& link = *runtime_.tiers();
  job.stored = std::make_shared<Stored>();
  job.stored->place.assign(job.records->names.size(), kNowhere);
  std::vector<TierPlace> allowed;
  for (TierPlace p = 0; p < link.tiers(); ++p)
    if (job.request.kv.may_use(link.traits(p))) allowed.push_back(p);
  job.stored->unanswered = static_cast<std::uint32_t>(allowed.size());
  for (const TierPlace p : allowed)
    link.find(p, job.records->names, [p, stored = job.stored](std::span<const std::uint8_t> there) {
      stored->answer(p, there);
    });
}

bool Engine::still_looking(const Job& job) const {
  return job.stored && !job.stored->all() &&
         now_ - job.submitted <
             patience(prefill_cost_, 0, static_cast<double>(job.request.prompt.size()));
}

// The end of the blocks from `from` on that can be loaded: a chain without gaps, with windows that
// are whole where it ends.
std::uint32_t Engine::stored_end(const Job& job, const Sequence& s, std::uint32_t from) const {
  const KvCache& cache = runtime_.cache();
  const PromptRecords& r = *job.records;
  const std::uint32_t most = std::min(r.blocks(), cache.serve_limit(s) / r.tokens_per_block);
  const auto lacks = [&](std::uint32_t block, std::uint32_t end) {
    for (std::uint32_t g = 0; g < r.groups(); ++g)
      if (r.column[g] != PromptRecords::kNone && job.stored->place[r.at(block, g)] == kNowhere &&
          cache.wants(s, g, block, end * r.tokens_per_block))
        return true;
    return false;
  };
  // At the far end only groups that want every block want this one.
  std::uint32_t end = from;
  while (end < most && !lacks(end, most + (1u << 20))) ++end;
  for (std::uint32_t block = end; block-- > from;)
    if (lacks(block, end)) end = block;
  return end;
}

void Engine::begin_loading(Job& job) {
  TierLink* link = runtime_.tiers();
  if (!link || !job.stored || job.state != Job::State::reading) return;
  if (!job.stored->known) return;
  const PromptRecords& r = *job.records;
  Sequence& s = *job.branch(0).sequence;
  const std::uint32_t from = s.length() / r.tokens_per_block, end = stored_end(job, s, from);
  if (end <= from) return;
  if (take_stored(job)) return;
  LoadSpan span{.from = from, .to = end, .tokens_per_block = r.tokens_per_block, .block_bytes = 0};
  std::vector<TierShare> shares;
  for (TierPlace p = 0; p < link->tiers(); ++p) shares.push_back({.cost = link->cost(p)});
  for (std::uint32_t g = 0; g < r.groups(); ++g) {
    if (!runtime_.cache().wants(s, g, from, (end + (1u << 20)) * r.tokens_per_block)) continue;
    std::uint64_t bytes = 0;
    for (const RecordSegment& part : r.segments[g]) bytes += part.bytes;
    span.block_bytes += bytes;
    for (std::uint32_t block = from; block < end; ++block)
      if (const TierPlace p = job.stored->place[r.at(block, g)]; p != kNowhere)
        shares[p].bytes += bytes;
  }
  const LoadPlan plan =
      plan_load(span, joint_cost(shares), prefill_cost_, running_.size() == 1 && line_.size() == 0);
  if (plan.first >= end) {
    job.reason = Reason::load_too_slow;
    return;
  }
  job.loading = std::make_unique<Loading>(
      *link, runtime_.cache(), job.records, job.stored->place,
      Loading::Plan{
          .first = plan.first,
          .end = end,
          .waits = plan.waits,
          .patience = patience(prefill_cost_, from * r.tokens_per_block, end * r.tokens_per_block)},
      job.request.kv.tenant, now_);
}

// Whether the job's program takes what is stored as it is. It is not loaded then.
bool Engine::take_stored(Job& job) {
  const Branch b = job.branch(0);
  const PromptRecords& r = *job.records;
  const std::uint32_t from = b.sequence->length();
  const auto taken = b.program->take_stored(stepper_, *b.sequence, r, job.stored->place);
  if (!taken) return false;
  job.loaded = *taken;
  job.cached =
      std::min(job.cached + *taken, static_cast<std::uint32_t>(job.request.prompt.size()) - 1);
  for (std::uint32_t t = from / r.tokens_per_block * r.tokens_per_block; t < from + *taken;
       t += r.tokens_per_block)
    for (std::uint32_t g = 0; g < r.groups(); ++g)
      if (r.column[g] != PromptRecords::kNone) {
        const TierPlace place = job.stored->place[r.at(t / r.tokens_per_block, g)];
        if (place != kNowhere && runtime_.tiers()->traits(place).shared)
          job.remote += r.tokens_per_block;
        break;
      }
  return true;
}

// Whether the job may have rows now. Blocks that are on their way may be worth waiting for.
bool Engine::arrives(Job& job) {
  if (!job.loading) return true;
  Sequence& s = *job.branch(0).sequence;
  job.loading->go_on(s, now_);
  if (!job.loading->over(s)) return !job.loading->waits(s, now_);
  end_loading(job);
  return true;
}

void Engine::end_loading(Job& job) {
  const auto prompt = static_cast<std::uint32_t>(job.request.prompt.size());
  const std::uint32_t length = job.branch(0).sequence->length();
  job.loaded = job.loading->adopted_tokens();
  job.remote = job.loading->remote_tokens();
  job.cached = std::min(job.cached + job.loaded, prompt - 1);
  job.load_time += now_ - job.loading->began();
  if (job.loading->failed())
    job.reason = Reason::load_failed;
  else if (length + 1 >= prompt)
    job.reason = Reason::none;
  else if (length / job.records->tokens_per_block >= job.keys.size())
    job.reason = Reason::block_partial;
  job.loading.reset();
  tell_admission(job);
}

// Memory is short: blocks on their way make room, and are computed.
bool Engine::give_up_loading() {
  for (std::size_t i = running_.size(); i-- > 0;) {
    if (!running_[i]->loading) continue;
    end_loading(*running_[i]);
    return true;
  }
  return false;
}

bool Engine::write_below() {
  TierLink* link = runtime_.tiers();
  if (!link) return false;
  drain_below();
  bool more = true;
  while (more && link->write_queue_bytes() < link->queue_max() / 4)
    more = runtime_.cache().offer_rest(offered_, Offer::sealed);
  if (!more) offered_ = 0;
  link->send();
  return more || link->write_queue_bytes() > 0;
}

void Engine::save_below(Nanoseconds limit) {
  TierLink* link = runtime_.tiers();
  if (!link) return;
  const Nanoseconds end = clock_.now() + limit;
  std::uint32_t place = 0;
  for (bool more = true; more && clock_.now() < end;) {
    drain_below();
    if (link->write_queue_bytes() < link->queue_max() / 2)
      more = runtime_.cache().offer_rest(place, Offer::leaving);
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    link->send();
  }
  link->flush(std::max<Nanoseconds>(end - clock_.now(), 0));
}

}  // namespace quire
